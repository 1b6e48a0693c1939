"""Pathfinder: does a dashed curve connect the two dots? Drawn here, a whole block of images at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.data.tasks.base import Labelled, Task
from maclaurin.data.tasks.registry import register

Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

DASH, GAP = 2.0, 2.0  # pixels along a curve
STEP = DASH + GAP
THICKNESS = 0.5
DOT = 1.5  # radius
APART = 2.5  # pixels that curves keep from each other, and from themselves
BORDER = 1.5
SEED_DISTANCE = 7.0  # between the beginnings of the two curves
ANGLES = 16  # a half turn is divided into
TRIED_PLACES = 8  # for a distractor
FINE = 2  # cells per pixel of the grid on which free room is looked for
POINTS = int(STEP)  # of a link that are looked at
PARTS = np.arange(1, POINTS + 1) / POINTS

# N images, S links of a curve, A angles, P points of a link, H height and width in pixels


@dataclass(frozen=True)
class Pathfinder(Task[Labelled]):
    """Are the two dots the ends of one curve? (Linsley et al., arXiv 1805.08315; the Long Range Arena's 32x32 images)

    Two dashed curves of `dashes` dashes begin 7 pixels apart around the middle and grow in turn, dashes 2 and gaps 2
    pixels long, each bent against the one before by an angle of density ∝ cos², without touching each other or
    themselves; an image in which one gets stuck is drawn again. Then distractors of dashes // 3 dashes each, 20 // that
    many of them, as far as there is room (these may cross themselves). One dot marks the beginning of a curve; the other
    the end of the same curve (label 1) or of the other one (label 0), with probability 1/2. Pixels are 0 … 255;
    flattened, they are the Arena's sequences of 1024 tokens. The Arena draws 200,000 images; `dashes` is 6 (easy), 9 or
    14 (hard, the one usually reported). scale: pixels per unit of length, so that images of size pixels show what those of
    size / scale would, drawn finer; `PathX` has four.

    What differs from the authors' generator: curves keep 2.5 pixels between their centre lines, gaps included, where the
    authors test a dilated raster of the dashes; lines are smoothed by the distance of a pixel to them, instead of by
    drawing at twice the size.
    """

    dashes: int = 14
    size: int = 32
    scale: int = 1

    def __post_init__(self) -> None:
        at_least(3, "dashes", self.dashes)
        at_least_one("size", self.size)
        at_least_one("scale", self.scale)
        if self.size % self.scale:
            raise ValueError(f"size must be a multiple of scale, got {self.size} and {self.scale}")
        least, side = 24 * self.scale, self.size // self.scale
        if self.size < least or self.dashes * STEP > side**2 / 14:
            room = self.scale * (int((14 * self.dashes * STEP) ** 0.5) + 1)
            raise ValueError(
                f"size must be at least {least} and give two curves of {self.dashes} dashes room, got {self.size}; "
                f"raise size to {max(least, room)} or lower dashes"
            )

    @property
    def vocab_size(self) -> int:
        return 256

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def block(self) -> int:
        return 64

    def draw(self, count: int, rng: np.random.Generator) -> Labelled:
        images: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        labels: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        missing = count
        while missing > 0:
            scene, curves_CNS2 = two_curves(
                Scene(max(64, 3 * missing), self.size // self.scale, self.scale), self.dashes, rng
            )
            scene, curves_CNS2 = scene.keep(slice(missing)), curves_CNS2[:, :missing]
            label_N = rng.integers(2, size=len(scene))
            add_dots(scene, curves_CNS2, label_N, rng)
            short = self.dashes // 3
            for _ in range(20 // short):
                add_distractor(scene, short, rng)
            images.append(scene.image())
            labels.append(label_N)
            missing -= len(scene)
        return Labelled(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)))


@dataclass(frozen=True)
class PathX(Pathfinder):
    """The Arena's longest task: images of 128x128, flattened to 16384 tokens. The scenes of Pathfinder at four times the
    resolution, dashes 8 pixels long and 2 thick; how long and thick the Arena's are is not known here.
    """

    size: int = 128
    scale: int = 4


class Scene:
    """Images in the making: what is drawn, and where there is no room left for each of the two curves.

    Lengths and places are in units; `scale` pixels are a unit.
    """

    def __init__(self, count: int, size: int, scale: int = 1) -> None:
        self.size, self.scale = size, scale
        self.canvas_NHH = np.zeros((count, size * scale, size * scale))
        self.taken_CNHH = np.zeros((2, count, size * FINE, size * FINE), bool)

    def __len__(self) -> int:
        return len(self.canvas_NHH)

    def keep(self, chosen_N: Flags | slice) -> Scene:
        kept = Scene(0, self.size, self.scale)
        kept.canvas_NHH, kept.taken_CNHH = self.canvas_NHH[chosen_N], self.taken_CNHH[:, chosen_N]
        return kept

    def is_free(self, points: Floats, curve: int) -> Flags:
        """(N, …, 2) points: which have nothing near them that this curve must keep away from, nor the border."""
        inside = ((points >= BORDER) & (points <= self.size - BORDER)).all(-1)
        cell = np.clip((points * FINE).astype(np.int64), 0, self.size * FINE - 1)
        image = np.arange(len(self)).reshape(-1, *[1] * (points.ndim - 2))
        return inside & ~self.taken_CNHH[curve, image, cell[..., 0], cell[..., 1]]

    def take(self, points_NP2: Floats, chosen_N: Flags, curve: int) -> None:
        """No room for this curve around these points any more, in the chosen images."""
        images = chosen_N.nonzero()[0]
        every_other = points_NP2[images, 1::2]  # two pixels apart: the discs around them overlap
        cells = (every_other * FINE).astype(np.int64)[:, :, None] + disc(APART * FINE)
        cells = np.clip(cells, 0, self.size * FINE - 1)
        self.taken_CNHH[curve, images[:, None, None], cells[..., 0], cells[..., 1]] = True

    def draw(self, begin_N2: Floats, end_N2: Floats, radius: float, chosen_N: Flags) -> None:
        """A line of half width `radius` in each chosen image, at most 3 units long; a dot where it has no length."""
        images, scale = chosen_N.nonzero()[0], self.scale
        begin, line = scale * begin_N2[images, None], scale * (end_N2 - begin_N2)[images, None]
        pixel = ((begin + line / 2).astype(np.int64) + disc(4 * scale)).clip(0, self.size * scale - 1)
        offset = pixel + 0.5 - begin
        along = np.clip((offset * line).sum(-1) / np.maximum((line**2).sum(-1), 1e-12), 0, 1)
        distance = np.linalg.norm(offset - along[..., None] * line, axis=-1)
        where = (images[:, None], pixel[..., 0], pixel[..., 1])
        self.canvas_NHH[where] = np.maximum(self.canvas_NHH[where], np.clip(scale * radius + 0.5 - distance, 0, 1))

    def draw_dash(self, begin_N2: Floats, end_N2: Floats, chosen_N: Flags) -> None:
        """The middle part of a link; a gap is half of this link's and half of the next."""
        gap_N2 = (end_N2 - begin_N2) * (GAP / 2 / STEP)
        self.draw(begin_N2 + gap_N2, end_N2 - gap_N2, THICKNESS / 2, chosen_N)

    def image(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return (255 * self.canvas_NHH).round().astype(np.uint8)


def two_curves(scene: Scene, dashes: int, rng: np.random.Generator) -> tuple[Scene, Floats]:
    """Two curves in empty scenes, and the corners of those (2, N, dashes + 1, 2), where they did not get stuck."""
    count = len(scene)
    middle_N2 = scene.size / 2 + rng.uniform(-2, 2, (count, 2))
    apart_N2 = SEED_DISTANCE / 2 * direction(rng.random(count) * 2 * np.pi)
    corners_CNS2 = np.stack([middle_N2 - apart_N2, middle_N2 + apart_N2])[:, :, None]
    angles_CN = rng.random((2, count)) * 2 * np.pi
    links_CNP2 = np.repeat(corners_CNS2, POINTS, axis=2)  # the last of each curve
    for curve in (0, 1):
        scene.take(links_CNP2[curve], np.ones(count, bool), 1 - curve)
    for _ in range(dashes):
        ends_CN2 = np.zeros_like(corners_CNS2[:, :, 0])
        going_N = np.ones(len(scene), bool)
        for curve in (0, 1):
            begin_N2 = corners_CNS2[curve, :, -1]
            angles_CN[curve], points_NP2, is_way_N = extend(scene, begin_N2, angles_CN[curve], curve, rng)
            going_N &= is_way_N
            ends_CN2[curve] = points_NP2[:, -1]
            scene.take(points_NP2, going_N, 1 - curve)
            # the curve itself need not keep away from its last link, at whose end the next one begins
            scene.take(links_CNP2[curve], going_N, curve)
            links_CNP2[curve] = points_NP2
        corners_CNS2 = np.concatenate([corners_CNS2, ends_CN2[:, :, None]], axis=2)[:, going_N]
        scene, angles_CN, links_CNP2 = scene.keep(going_N), angles_CN[:, going_N], links_CNP2[:, going_N]
    everywhere_N = np.ones(len(scene), bool)
    for curve in (0, 1):
        scene.take(links_CNP2[curve], everywhere_N, curve)
        for begin, end in zip(range(dashes), range(1, dashes + 1), strict=True):
            scene.draw_dash(corners_CNS2[curve, :, begin], corners_CNS2[curve, :, end], everywhere_N)
    return scene, corners_CNS2


def add_distractor(scene: Scene, dashes: int, rng: np.random.Generator) -> None:
    """One more curve in each image where a place and a way are found for it."""
    count = len(scene)
    places = rng.uniform(BORDER, scene.size - BORDER, (count, TRIED_PLACES, 2))
    free = scene.is_free(places, 0)
    corners = [places[np.arange(count), free.argmax(1)]]
    links: list[Floats] = []
    going_N = np.asarray(free.any(1))
    angle_N = rng.random(count) * 2 * np.pi
    for _ in range(dashes):
        angle_N, points_NP2, is_way_N = extend(scene, corners[-1], angle_N, 0, rng)
        going_N &= is_way_N
        links.append(points_NP2)
        corners.append(points_NP2[:, -1])
    for begin, end, points_NP2 in zip(corners, corners[1:], links, strict=False):
        scene.draw_dash(begin, end, going_N)
        scene.take(points_NP2, going_N, 0)


def add_dots(
    scene: Scene, curves_CNS2: Floats, label_N: np.ndarray[Any, np.dtype[np.int64]], rng: np.random.Generator
) -> None:
    """A dot at the beginning of a curve, another at the end of the same (label 1) or of the other one (label 0)."""
    everywhere, image = np.ones(len(scene), bool), np.arange(len(scene))
    first = rng.integers(2, size=len(scene))
    second = np.where(label_N == 1, first, 1 - first)
    for tip in (curves_CNS2[first, image, 0], curves_CNS2[second, image, -1]):
        scene.draw(tip, tip, DOT, everywhere)


def extend(
    scene: Scene, begin_N2: Floats, angle_N: Floats, curve: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Flags]:
    """One link further, bent by an angle of density ∝ cos² among those with room: its angle, its points, is there any."""
    bends_NA = (np.arange(ANGLES) + rng.random((len(angle_N), 1))) / ANGLES * np.pi - np.pi / 2
    angles_NA = angle_N[:, None] + bends_NA
    links_NAP2 = begin_N2[:, None, None] + PARTS[:, None] * STEP * direction(angles_NA)[:, :, None]
    weight_NA = np.cos(bends_NA) ** 2 * scene.is_free(links_NAP2, curve).all(2)
    total_NA = weight_NA.cumsum(1)
    chosen_N = (total_NA <= rng.random((len(angle_N), 1)) * total_NA[:, -1:]).sum(1).clip(max=ANGLES - 1)
    image_N = np.arange(len(angle_N))
    return angles_NA[image_N, chosen_N], links_NAP2[image_N, chosen_N], total_NA[:, -1] > 0


def direction(angle: Floats) -> Floats:
    return np.stack([np.sin(angle), np.cos(angle)], -1)


@cache
def disc(radius: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The whole numbered points (P, 2) that are no further than this from 0."""
    reach = np.arange(-int(radius), int(radius) + 1)
    square = np.stack(np.meshgrid(reach, reach, indexing="ij"), -1).reshape(-1, 2)
    return square[(square**2).sum(1) <= radius**2]


register("pathfinder", Pathfinder, "does a dashed curve connect the two dots")
register("path-x", PathX, "the same in images of 128x128")
