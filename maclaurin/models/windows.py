"""Attention in windows of an image, for any mixer that sees whole sequences.

Swin (Liu et al., arXiv 2103.14030) cuts the grid into squares, and in every second layer shifts the cuts by half a square. A
grid that is rolled has windows at its edges with tokens from both ends. Softmax does not let these see each other, and adds
a learned bias per head and offset; other mixers take such a window as it is, as the authors of InLine do.

CSwin (Dong et al., arXiv 2107.00652) gives half of the heads columns of the grid and the others rows. Two mixers with
half of the heads each, whose outputs are added, are one mixer whose output is projected from both. Every window adds to its
output a depthwise filter of 3 x 3 over its values (LePE).
"""

# N windows, T tokens of a window, H heads, D channels

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.mechanisms import Softmax
from maclaurin.ops.bidirectional import bidirectional_softmax
from maclaurin.ops.states import State

Sides = tuple[int, int]  # rows and columns


class Windows(nn.Module):
    """(B, rows·columns, D) -> the same, window by window; called as a mixer."""

    def __init__(self, mixer: Mixer, grid: Sides, window: Sides, shift: int = 0) -> None:
        super().__init__()
        self.mixer = mixer
        self.grid, self.window, self.shift = grid, window, shift

    def forward(self, x: Tensor, *, return_state: bool = False) -> tuple[Tensor, None]:
        mixed, _ = self.mixer(cut(x, self.grid, self.window, self.shift), return_state=return_state)
        return joined(mixed, self.grid, self.window, self.shift), None


class CrossShaped(nn.Module):
    """The sum of two mixers, one of columns and one of rows, `width` wide."""

    def __init__(self, columns: Mixer, rows: Mixer, grid: Sides, width: int) -> None:
        super().__init__()
        self.columns = Windows(columns, grid, (grid[0], width))
        self.rows = Windows(rows, grid, (width, grid[1]))

    def forward(self, x: Tensor, *, return_state: bool = False) -> tuple[Tensor, None]:
        return self.columns(x)[0] + self.rows(x)[0], None


def cut(x: Tensor, grid: Sides, window: Sides, shift: int = 0) -> Tensor:
    """(B, rows·columns, D) -> (B·N, T, D), the windows of an image row by row."""
    image = x.unflatten(1, grid).roll((-shift, -shift), (1, 2))
    parts = image.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0])).transpose(2, 3)
    return parts.flatten(3, 4).flatten(0, 2)


def joined(windows: Tensor, grid: Sides, window: Sides, shift: int = 0) -> Tensor:
    """The inverse of `cut`."""
    parts = windows.unflatten(1, window).unflatten(0, (-1, grid[0] // window[0], grid[1] // window[1]))
    return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((shift, shift), (1, 2)).flatten(1, 2)


class WindowSoftmax(Attention):
    """Softmax in the windows of Swin: a bias per head and offset between two places, and no look across an edge."""

    def __init__(self, d_model: int, num_heads: int, *, grid: Sides, window: Sides, shift: int, **options: Any) -> None:
        super().__init__(d_model, num_heads, order=None, causal=False, **options)
        self.grid, self.sides, self.shift = grid, window, shift
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        self.offset_bias = nn.Parameter(torch.empty(offsets, num_heads).normal_(std=0.02))

    @property
    def mechanism(self) -> Softmax:
        device = self.offset_bias.device
        bias_HTT = self.offset_bias[offset_between(self.sides, device)].permute(2, 0, 1)
        if not self.shift:
            return BiasedSoftmax(bias=bias_HTT)
        apart_NTT = ~seen_in_windows(self.grid, self.sides, self.shift, device)
        return BiasedSoftmax(bias=bias_HTT.masked_fill(apart_NTT[:, None], -math.inf))


@dataclass(eq=False)
class BiasedSoftmax(Softmax):
    """Softmax over whole sequences with a bias on its scores: (H, T, T), or (N, H, T, T) for every N of a batch."""

    causal: bool = False
    bias: Tensor | None = None

    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        return bidirectional_softmax(q, k, v, scale=self.scale, bias=self._of_batch(q)), None

    def _weigh(self, scores_BHTS: Tensor, bias_BHTS: Tensor | None, seen_TS: Tensor) -> Tensor:
        return (scores_BHTS + self._of_batch(scores_BHTS)).softmax(-1)

    def _of_batch(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        return self.bias if self.bias.dim() == 3 else self.bias.repeat(len(x) // len(self.bias), 1, 1, 1)


def offset_between(window: Sides, device: torch.device) -> Tensor:
    """Which of the (2·rows - 1)·(2·columns - 1) offsets lies between two places of a window, (T, T)."""
    rows, columns = window
    places = torch.arange(rows * columns, dtype=torch.long, device=device)
    row, column = places // columns, places % columns
    down, right = row[:, None] - row, column[:, None] - column
    return (down + rows - 1) * (2 * columns - 1) + right + columns - 1


def seen_in_windows(grid: Sides, window: Sides, shift: int, device: torch.device) -> Tensor:
    """Which tokens of a shifted window were in one piece before the grid was rolled, (N, T, T)."""
    row, column = (torch.arange(side, dtype=torch.long, device=device) + shift >= side for side in grid)  # beyond the edge
    piece_NT1 = cut((2 * row[:, None].long() + column).flatten()[None, :, None], grid, window)
    return piece_NT1 == piece_NT1.mT
