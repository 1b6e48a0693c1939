"""The weights that a mixer gives to its values, as a matrix, and which keys to hide from its queries."""

# B batch, T queries, S keys, H heads

from __future__ import annotations

import math

import torch
from torch import Tensor

from maclaurin.mixers.projected import ProjectedMixer, Projections


def of_mixer(mixer: ProjectedMixer, p: Projections, visible_TS: Tensor | None = None) -> Tensor:
    """The weights (B, H, T, S) that a mixer gives to its values, in float64, from what it projects (`mixer.project`).

    visible: of the keys that its queries could see. Where outputs are normalised later, weights are not.
    """
    mechanism = mixer.mechanism
    if mechanism is None:
        raise ValueError(f"{type(mixer).__name__} has no weights in matrix form: take softmax, linear, inline …")
    return mechanism.weights(p.q, p.k, p.log_decay, visible_TS)


def neighbours(grid: tuple[int, int], width: int) -> Tensor:
    """Which places (N, N) of a grid, row by row, lie in the square of that side around each place."""
    rows, columns = (torch.arange(side, dtype=torch.long, device="cpu") for side in grid)
    row_N, column_N = (part.flatten() for part in torch.meshgrid(rows, columns, indexing="ij"))
    reach = width // 2
    return ((row_N[:, None] - row_N).abs() <= reach) & ((column_N[:, None] - column_N).abs() <= reach)


def last_tokens(length: int, width: int) -> Tensor:
    """Which tokens (T, T) are among the last `width` before each token, itself included."""
    return torch.ones(length, length, dtype=torch.bool, device="cpu").tril().triu(1 - width)


def random_of_equal_number(chosen_NS: Tensor, among_NS: Tensor, generator: torch.Generator) -> Tensor:
    """For each query, as many keys as are chosen, at random among those of `among`."""
    order = (
        torch.rand(chosen_NS.shape, generator=generator, dtype=torch.float32, device="cpu")
        .masked_fill(~among_NS, math.inf)
        .argsort(-1)
        .argsort(-1)
    )
    return (order < chosen_NS.sum(-1, keepdim=True)) & among_NS
