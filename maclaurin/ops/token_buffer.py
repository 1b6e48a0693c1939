"""Keys, values and decays with slots behind them for the tokens to come: a cache grows without being copied.

A tensor that grows by one token per step would be copied whole every step. Here its first successor takes the slot behind
it; what a sliding window drops stays before it until the buffer is full. A second successor of the same tensor (another
beam, another thread) finds the slot taken and makes a copy, so that tensors stay what they were: nobody sees a token that
is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from maclaurin.ops.transforms import is_transformed

COPIED_BELOW = 2**16  # numbers: up to here a copy costs less than the bookkeeping
SPARE = 128  # slots behind the tokens of a new buffer


class TokenBuffer:
    """Tensors (B, slots, heads, ...) that hold the same tokens, and who has taken the slots behind them: each one once.

    The tokens of a head are side by side in memory, because one query reads them all.
    """

    def __init__(self, tokens: Sequence[Tensor], slots: int) -> None:
        """Copies of tensors (B, S, heads, ...), in the first of the slots."""
        self.slots = slots
        self.tensors = tuple(_empty(x, slots) for x in tokens)
        for place, x in zip(self.tensors, tokens, strict=True):
            place.data[:, : x.shape[1]] = x.detach()
        self.is_inference = torch.is_inference_mode_enabled()
        self.taken: dict[int, object] = {}

    def take(self, start: int, end: int) -> bool:
        """Whether the slots from `start` to `end` are now the caller's, who continues the tokens before them."""
        mine = object()
        usable = end <= self.slots and self.is_inference == torch.is_inference_mode_enabled()
        return usable and self.taken.setdefault(start, mine) is mine  # setdefault is one step for all Python threads

    def leave(self, start: int) -> None:
        """Nothing was written there: the next one takes it."""
        del self.taken[start]


def _empty(like: Tensor, slots: int) -> Tensor:
    B, _, heads, *channels = like.shape
    return like.new_empty(B, heads, slots, *channels).transpose(1, 2)


_buffers = WeakTensorKeyDictionary()  # the buffer around a tensor and where in it the tensor begins, while the tensor lives


def append(kept: Tensor, new: Tensor) -> Tensor:
    """cat([kept, new], dim=1) for tensors (B, S, heads, ...) and (B, T, heads, ...)."""
    tracked = torch.is_grad_enabled() and (kept.requires_grad or new.requires_grad)
    if kept.numel() < COPIED_BELOW or tracked or torch.compiler.is_compiling() or is_transformed():
        return torch.cat([kept, new], dim=1)
    buffer, begin = _buffers.get(kept, (None, 0))
    start, added = begin + kept.shape[1], new.shape[1]
    if buffer is None or not buffer.take(start, start + added):
        begin, start = 0, kept.shape[1]
        buffer = TokenBuffer([kept], start + added + SPARE)
        buffer.take(start, start + added)
    buffer.tensors[0].data[:, start : start + added] = new.detach()
    return _view(buffer, begin, start + added)


def without_first(kept: Tensor, count: int) -> Tensor:
    """kept[:, count:], in the same buffer unless most of that would be empty: a window that slides is rarely copied."""
    left = kept.shape[1] - count
    buffer, begin = (None, 0) if torch.compiler.is_compiling() else _buffers.get(kept, (None, 0))
    if buffer is None or buffer.slots > left + 2 * SPARE:
        return kept[:, count:].clone(memory_format=torch.contiguous_format)  # strides are part of what a graph is made for
    return _view(buffer, begin + count, begin + kept.shape[1])


def _view(buffer: TokenBuffer, begin: int, end: int) -> Tensor:
    # .data has a version counter of its own: what autograd may have kept of shorter views is not changed by writing
    # behind them
    view = buffer.tensors[0].data[:, begin:end]
    _buffers[view] = (buffer, begin)
    return view
