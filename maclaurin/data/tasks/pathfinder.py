"""Pathfinder: does a dashed curve connect the two dots? Drawn here, a whole block of images at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from maclaurin.data.tasks.base import Labelled, Task
from maclaurin.data.tasks.registry import register
from maclaurin.ops.checks import at_least, at_least_one

Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

DASH, GAP = 2.0, 2.0  # pixels along a curve
STEP = DASH + GAP
THICKNESS = 0.5
DOT = 1.5  # radius
APART = 2.5  # pixels that curves keep from each other, and from themselves
BORDER = 1.5
SEED_DISTANCE = 7.0  # between the beginnings of the two curves
TRIED_ANGLES = 12
TRIED_PLACES = 8  # for a distractor
FINE = 2  # cells a pixel of the grid on which room is looked for

# N images, S links of a curve, A angles tried, P points of a link, H height and width in pixels


@dataclass(frozen=True)
class Pathfinder(Task[Labelled]):
    """Are the two dots the ends of one curve? (Linsley et al., arXiv 1805.08315; the Long Range Arena's 32x32 images)

    Two dashed curves of `dashes` dashes begin 7 pixels apart around the middle and grow in turn, dashes 2 and gaps 2 pixels long,
    each bent against the one before by an angle of density ∝ cos², without touching each other or themselves; an image in
    which one gets stuck is drawn again. Then distractors of dashes // 3 dashes each, 20 // that many of them, as far as there
    is room. One dot marks the beginning of a curve; the other the end of the same curve (label 1) or of the other one
    (label 0), with probability 1/2. Pixels are 0 … 255; flattened, they are the Arena's sequences of 1024 tokens. The Arena
    draws 200,000 images; `dashes` is 6 (easy), 9 or 14 (hard, the one usually reported).

    What differs from the authors' generator: curves keep 2.5 pixels between their centre lines, gaps included, where the
    authors test a dilated raster of the dashes; lines are smoothed by the distance of a pixel to them, instead of by drawing
    at twice the size.
    """

    dashes: int = 14
    size: int = 32

    def __post_init__(self) -> None:
        at_least(3, "dashes", self.dashes)
        at_least_one("size", self.size)
        if self.size < 24 or self.dashes * STEP > self.size**2 / 14:
            raise ValueError(
                f"size must be at least 24 and give two curves of {self.dashes} dashes room, got {self.size}; "
                f"raise size to {max(24, int((14 * self.dashes * STEP) ** 0.5) + 1)} or lower dashes"
            )

    @property
    def vocab_size(self) -> int:
        return 256

    @property
    def num_classes(self) -> int:
        return 2

    def draw(self, count: int, rng: np.random.Generator) -> Labelled:
        images: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        labels: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        missing = count
        while missing > 0:
            scene = Scene(self.block, self.size)
            curves_CNS2, stuck_N = two_curves(scene, self.dashes, rng)
            scene = scene.keep(~stuck_N)
            label_N = rng.integers(2, size=len(scene))
            add_dots(scene, curves_CNS2[:, ~stuck_N], label_N, rng)
            short = self.dashes // 3
            for _ in range(20 // short):
                add_distractor(scene, short, rng)
            images.append(scene.image())
            labels.append(label_N)
            missing -= len(scene)
        pixels, answers = np.concatenate(images)[:count], np.concatenate(labels)[:count]
        return Labelled(torch.from_numpy(pixels), torch.from_numpy(answers))


class Scene:
    """Images in the making: where there is no room left, and what is drawn."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.taken = np.zeros((count, size * FINE, size * FINE), bool)
        self.canvas = np.zeros((count, size, size))

    def __len__(self) -> int:
        return len(self.canvas)

    def keep(self, chosen: Flags) -> Scene:
        kept = Scene(0, self.size)
        kept.taken, kept.canvas = self.taken[chosen], self.canvas[chosen]
        return kept

    def is_free(self, points: Floats) -> Flags:
        """(N, …, 2) points in pixels: which have nothing drawn near them and lie inside the border."""
        inside = ((points >= BORDER) & (points <= self.size - BORDER)).all(-1)
        cell = np.clip((points * FINE).astype(np.int64), 0, self.size * FINE - 1)
        image = np.arange(len(self)).reshape(-1, *[1] * (points.ndim - 2))
        return inside & ~self.taken[image, cell[..., 0], cell[..., 1]]

    def take(self, points_NP2: Floats, chosen_N: Flags) -> None:
        """No room for others around these points any more, in the chosen images."""
        images = chosen_N.nonzero()[0]
        reach = np.arange(-int(APART * FINE), int(APART * FINE) + 1)
        disc = np.stack(np.meshgrid(reach, reach, indexing="ij"), -1).reshape(-1, 2)
        disc = disc[(disc**2).sum(1) <= (APART * FINE) ** 2]
        cells = (points_NP2[images] * FINE).astype(np.int64)[:, :, None] + disc
        cells = np.clip(cells, 0, self.size * FINE - 1)
        self.taken[images[:, None, None], cells[..., 0], cells[..., 1]] = True

    def draw(self, begin_N2: Floats, end_N2: Floats, radius: float, chosen_N: Flags) -> None:
        """A line of half width `radius` in each chosen image; a dot where it has no length."""
        images = chosen_N.nonzero()[0]
        begin, line = begin_N2[images, None], (end_N2 - begin_N2)[images, None]
        reach = np.arange(-4, 5)
        window = np.stack(np.meshgrid(reach, reach, indexing="ij"), -1).reshape(-1, 2)
        pixel = ((begin + line / 2).astype(np.int64) + window).clip(0, self.size - 1)
        offset = pixel + 0.5 - begin
        along = np.clip((offset * line).sum(-1) / np.maximum((line**2).sum(-1), 1e-12), 0, 1)
        distance = np.linalg.norm(offset - along[..., None] * line, axis=-1)
        np.maximum.at(self.canvas, (images[:, None], pixel[..., 0], pixel[..., 1]), np.clip(radius + 0.5 - distance, 0, 1))

    def image(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return (255 * self.canvas).round().astype(np.uint8)


def two_curves(scene: Scene, dashes: int, rng: np.random.Generator) -> tuple[Floats, Flags]:
    """Two curves in every image: their corners (2, N, dashes + 1, 2), and in which images one of them got stuck."""
    count = len(scene)
    around = direction(rng.random(count) * 2 * np.pi)
    middle = scene.size / 2 + rng.uniform(-2, 2, (count, 2))
    corners = [[middle + SEED_DISTANCE / 2 * side * around] for side in (-1, 1)]
    angles = [rng.random(count) * 2 * np.pi for _ in corners]
    last: list[Floats | None] = [None, None]
    going = np.ones(count, bool)
    for dash in range(dashes):
        for curve in (0, 1):
            bends = bend((count, TRIED_ANGLES), rng) if dash else rng.uniform(-np.pi, np.pi, (count, TRIED_ANGLES))
            angles[curve], end, points, free = extend(scene, corners[curve][-1], angles[curve][:, None] + bends)
            going &= free
            scene.draw(*dash_of(corners[curve][-1], end), THICKNESS / 2, going)
            # the link before this one closes only now: this one begins at its end
            if (before := last[curve]) is not None:
                scene.take(before, going)
            last[curve] = points
            corners[curve].append(end)
    for points in last:
        assert points is not None
        scene.take(points, going)
    return np.stack([np.stack(curve, 1) for curve in corners]), ~going


def add_distractor(scene: Scene, dashes: int, rng: np.random.Generator) -> None:
    """One more curve in each image where a place and a way are found for it."""
    count = len(scene)
    places = rng.uniform(BORDER, scene.size - BORDER, (count, TRIED_PLACES, 2))
    free = scene.is_free(places)
    corners = [places[np.arange(count), free.argmax(1)]]
    links: list[Floats] = []
    going = free.any(1)
    angle = rng.random(count) * 2 * np.pi
    for dash in range(dashes):
        bends = bend((count, TRIED_ANGLES), rng) if dash else rng.uniform(-np.pi, np.pi, (count, TRIED_ANGLES))
        angle, end, points, is_way = extend(scene, corners[-1], angle[:, None] + bends)
        going &= is_way
        links.append(points)
        corners.append(end)
    for begin, end, points in zip(corners, corners[1:], links, strict=False):
        scene.draw(*dash_of(begin, end), THICKNESS / 2, going)
        scene.take(points, going)


def add_dots(scene: Scene, curves_CNS2: Floats, label_N: np.ndarray[Any, np.dtype[np.int64]], rng: np.random.Generator) -> None:
    """A dot at the beginning of a curve, another at the end of the same (label 1) or of the other one (label 0)."""
    everywhere, image = np.ones(len(scene), bool), np.arange(len(scene))
    first = rng.integers(2, size=len(scene))
    second = np.where(label_N == 1, first, 1 - first)
    for tip in (curves_CNS2[first, image, 0], curves_CNS2[second, image, -1]):
        scene.draw(tip, tip, DOT, everywhere)


def extend(scene: Scene, begin_N2: Floats, angles_NA: Floats) -> tuple[Floats, Floats, Floats, Flags]:
    """One link further in the first direction that is free: its angle, end and points, and whether there was one."""
    links_NAP2 = points_along(begin_N2[:, None], begin_N2[:, None] + STEP * direction(angles_NA))
    free_NA = scene.is_free(links_NAP2).all(2)
    image, choice = np.arange(len(angles_NA)), free_NA.argmax(1)
    points_NP2 = links_NAP2[image, choice]
    return angles_NA[image, choice], points_NP2[:, -1], points_NP2, free_NA.any(1)


def dash_of(begin: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The middle part of a link, which is drawn; a gap is half of this link's and half of the next."""
    step = end - begin
    return begin + step * (GAP / 2 / STEP), end - step * (GAP / 2 / STEP)


def points_along(begin: Floats, end: Floats) -> Floats:
    """Points half a pixel apart on the way from begin (not included) to end."""
    parts = np.linspace(0, 1, int(2 * STEP) + 1)[1:, None]
    return begin[..., None, :] + parts * (end - begin)[..., None, :]


def direction(angle: Floats) -> Floats:
    return np.stack([np.sin(angle), np.cos(angle)], -1)


def bend(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Angles in ±π/2 with density (2/π)·cos²: by Newton's method on the distribution function 1/2 + (x + sin x·cos x)/π."""
    goal = (rng.random(shape) - 0.5) * np.pi
    x = goal / 2
    for _ in range(12):
        x = x - (x + np.sin(x) * np.cos(x) - goal) / np.maximum(2 * np.cos(x) ** 2, 0.05)
        x = np.clip(x, -np.pi / 2, np.pi / 2)
    return x


register("pathfinder", Pathfinder, "does a dashed curve connect the two dots")
