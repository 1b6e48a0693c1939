"""The local mass of a model's layers, and its accuracy with neighbours or with as many random keys hidden."""

# B examples, H heads, T queries, S keys

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.watched import Watched
from maclaurin.mixers import weights
from maclaurin.mixers.projected import ProjectedMixer

NEAR = 3  # the square, or the last tokens, whose mass is counted


@dataclass(frozen=True)
class Masses:
    """By layer: the share of the weights, by their size, on the neighbourhood. chance: what uniform weights give."""

    name: str
    layers: list[float]
    chance: float


@dataclass(frozen=True)
class Masked:
    """Accuracy with nothing hidden, and by width with the neighbourhood or as many random keys hidden in every layer.

    lost: how much more a local mask costs than a random one. errors: its standard error over the examples.
    """

    name: str
    whole: float
    local: list[float]
    random: list[float]
    lost: list[float]
    errors: list[float]


def neighbourhood(watched: Watched, width: int) -> Tensor:
    """Which keys (T, S) are near: a square of an image, the last tokens of a text."""
    if watched.grid is None:
        return weights.last_tokens(watched.tokens, width)
    return weights.neighbours(watched.grid, width)


def seen_by(watched: Watched) -> Tensor:
    """Which keys (T, S) a query sees: all of an image, the past of a text."""
    everything = torch.ones(watched.tokens, watched.tokens, dtype=torch.bool, device="cpu")
    return everything if watched.grid is not None else everything.tril()


def mass(weight_TS: Tensor, near_TS: Tensor) -> Tensor:
    """The share of weights (..., T, S) on the near keys, by absolute value because weights may be negative: (..., T)."""
    size = weight_TS.abs()
    return (size * near_TS).sum(-1) / size.sum(-1).clamp(min=1e-300)


@torch.no_grad()
def local_mass(watched: Watched, width: int = NEAR) -> Masses:
    """The mean over examples, heads and queries. In a text, queries are those that have seen twice as many tokens."""
    near_TS, seen_TS = neighbourhood(watched, width), seen_by(watched)
    counted = slice(0 if watched.grid is not None else 2 * width, None)
    weights_of = (weights.of_mixer(layer.mixer, layer.p) for layer in watched.layers())
    layers = [mass(weight_BHTS, near_TS)[..., counted].mean().item() for weight_BHTS in weights_of]
    return Masses(watched.name, layers, mass(seen_TS.double(), near_TS)[counted].mean().item())


@torch.no_grad()
def masking(watched: Watched, widths: Sequence[int], *, seed: int, draws: int) -> Masked:
    """Hide keys from the queries of every layer at test time. Random masks are drawn anew for every layer, `draws` times."""
    generator = torch.Generator().manual_seed(seed)
    seen_TS = seen_by(watched)
    local, random, lost, errors = [], [], [], []
    for width in widths:
        near_TS = neighbourhood(watched, width)
        if watched.grid is None:
            near_TS = (
                near_TS & (torch.arange(watched.tokens, dtype=torch.long, device="cpu") >= 2 * width)[:, None]
            )  # something stays to be seen

        def hide_near(mixer: ProjectedMixer, near_TS: Tensor = near_TS) -> Tensor:
            return near_TS

        def hide_random(mixer: ProjectedMixer, near_TS: Tensor = near_TS) -> Tensor:
            return weights.random_of_equal_number(near_TS, seen_TS, generator)

        with watched.hiding(hide_near):
            near_N = watched.run().double()
        with watched.hiding(hide_random):
            random_N = torch.stack([watched.run().double() for _ in range(draws)]).mean(0)
        difference_N = random_N - near_N
        local.append(near_N.mean().item())
        random.append(random_N.mean().item())
        lost.append(difference_N.mean().item())
        errors.append((difference_N.std() / math.sqrt(len(near_N))).item())
    return Masked(watched.name, watched.accuracy(), local, random, lost, errors)
