"""Queries in blocks: never a T x T matrix in memory, and in a window no more than linear time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from maclaurin.ops.transforms import recomputed

MATRIX_BYTES = 2**30  # of weights at a time where launches cost more than memory does


def queries_at_once(q: Tensor, slots: int, block: int, window: int | None = None) -> int:
    """Queries (..., T, K) whose weights exist at a time: `block` on a CPU, elsewhere as many as there is room for."""
    if q.is_cpu:
        return block
    widest = slots if window is None else min(slots, 9 * window)
    room = MATRIX_BYTES // (math.prod(q.shape[:-2]) * widest * q.element_size())
    return max(block, room if window is None else min(room, 8 * window))


def over_query_blocks(
    attend: Callable[[Tensor, int], Tensor], q: Tensor, slots: int, block: int, recompute: bool = True
) -> Tensor:
    """attend(queries, number of keys they may see) for blocks of q (..., T, K), which is computed again backwards.

    The queries are the last T of the `slots` keys.
    """
    T = q.shape[-2]
    if T <= block:
        return attend(q, slots)
    ends = range(slots - T + block, slots + block, block)
    pieces = []
    for q_block, end in zip(q.split(block, dim=-2), ends, strict=True):
        seen = min(end, slots)
        pieces.append(recomputed(attend, q_block, seen) if recompute else attend(q_block, seen))
    return torch.cat(pieces, dim=-2)


def slices(x: Tensor, dim: int, window: int | None, block: int) -> Callable[[int, int], Tensor]:
    """x[begin:end] along time. In a window the gradients of all slices together take linear time.

    The gradient of a plain slice is as large as all of x, so those of all blocks would take quadratic time. Pieces that are
    cut once have gradients of their own size.
    """
    if window is None or x.shape[dim] <= block + window:
        return lambda begin, end: x.narrow(dim, begin, end - begin)
    pieces = x.split(block, dim)

    def banded(begin: int, end: int) -> Tensor:
        first = begin // block
        band = torch.cat(pieces[first : (end - 1) // block + 1], dim)
        return band.narrow(dim, begin - first * block, end - begin)

    return banded
