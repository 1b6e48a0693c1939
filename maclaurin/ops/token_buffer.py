"""Append to a tensor along time without copying what is there.

A cache that grows by one token a step would be copied whole every step. Here a tensor may have spare room behind it, which
its first successor takes; what a sliding window drops stays before it until the room is full. A second successor of the
same tensor (another beam, another thread) finds the room taken and makes a copy, so that tensors stay what they were:
nobody sees a token that is not his.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

COPIED_BELOW = 2**16  # numbers: up to here a copy costs less than the bookkeeping
SPARE = 128  # tokens of room behind a tensor that is copied


@dataclass
class _Room:
    """A buffer and who has taken its room: each length at most once, by one token of identity."""

    buffer: Tensor
    taken: dict[int, object] = field(default_factory=dict)

    def take(self, start: int, end: int) -> bool:
        mine = object()
        usable = end <= self.buffer.shape[1] and self.buffer.is_inference() == torch.is_inference_mode_enabled()
        return usable and self.taken.setdefault(start, mine) is mine  # setdefault is one step for all Python threads

    def view(self, begin: int, end: int) -> Tensor:
        # .data has a version counter of its own: what autograd may have kept of shorter views is not changed by writing
        # behind them
        view = self.buffer.data[:, begin:end]
        _rooms[view] = (self, begin)
        return view


_rooms = WeakTensorKeyDictionary()  # the room around a tensor and where in it the tensor begins, while the tensor lives


def append(kept: Tensor, new: Tensor) -> Tensor:
    """cat([kept, new], dim=1) for tensors (B, S, ...) and (B, T, ...)."""
    tracked = torch.is_grad_enabled() and (kept.requires_grad or new.requires_grad)
    if kept.numel() < COPIED_BELOW or tracked or torch.compiler.is_compiling():
        return torch.cat([kept, new], dim=1)
    room, begin = _rooms.get(kept, (None, 0))
    start, added = begin + kept.shape[1], new.shape[1]
    if room is None or not room.take(start, start + added):
        begin, start = 0, kept.shape[1]
        room = _Room(_empty(kept, start + added + SPARE))
        room.buffer.data[:, :start] = kept.detach()
        room.take(start, start + added)
    room.buffer.data[:, start : start + added] = new.detach()
    view: Tensor = room.view(begin, start + added)
    return view


def _empty(like: Tensor, length: int) -> Tensor:
    """A buffer (B, length, ...). That of keys and values has the tokens of a head side by side: one query reads them all."""
    if like.dim() != 4:
        return like.new_empty(like.shape[0], length, *like.shape[2:])
    B, _, heads, channels = like.shape
    return like.new_empty(B, heads, length, channels).transpose(1, 2)


def without_first(kept: Tensor, count: int) -> Tensor:
    """kept[:, count:], in the same room unless most of that would be empty: a window that slides is rarely copied."""
    left = kept.shape[1] - count
    room, begin = (None, 0) if torch.compiler.is_compiling() else _rooms.get(kept, (None, 0))
    if room is None or room.buffer.shape[1] > left + 2 * SPARE:
        return kept[:, count:].clone()
    view: Tensor = room.view(begin + count, begin + kept.shape[1])
    return view
