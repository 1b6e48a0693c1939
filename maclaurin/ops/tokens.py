"""Kept tokens and new tokens as one sequence: what a causal op attends to, and what it keeps for the next call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.ops.states import TokenState
from maclaurin.ops.token_buffer import append, without_first


@dataclass(frozen=True)
class Tokens:
    """S slots = the kept tokens of a state, then the new ones. The real tokens of a sequence are slots [first, end).

    Padding is neutral: its key, value and log decay are zero (`ragged.py` sees to that). `first` and `end` are None where
    nothing is padding.
    """

    keys: Tensor  # (B, S, G, K)
    values: Tensor  # (B, S, G, V)
    log_decay: Tensor | None  # (B, S, G)
    new: int  # how many of the slots are new
    first: Tensor | None = None  # (B,)
    end: Tensor | None = None  # (B,)

    @staticmethod
    def gather(state: TokenState | None, k: Tensor, v: Tensor, log_decay: Tensor | None, lengths: Tensor | None) -> Tokens:
        B, T = k.shape[:2]
        if log_decay is None and state is not None and state.log_decay is not None:
            raise ValueError("log_decay must be given, because the state comes from tokens that had one")
        if state is None or state.slots == 0:
            first = None if lengths is None else torch.zeros_like(lengths)
            return Tokens(k, v, log_decay, T, first, lengths)
        k, v = append(state.keys.to(k.dtype), k), append(state.values.to(v.dtype), v)
        log_decay = _join_decay(state.log_decay, log_decay, state.slots)
        if lengths is None and state.lengths is None:
            return Tokens(k, v, log_decay, T)
        kept = torch.full((B,), state.slots, dtype=torch.long, device=k.device) if state.lengths is None else state.lengths
        added = torch.full((B,), T, dtype=torch.long, device=k.device) if lengths is None else lengths
        return Tokens(k, v, log_decay, T, state.slots - kept, state.slots + added)

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    def real(self) -> Tensor | None:
        """(B, S) bool, or None where every slot is a token."""
        if self.first is None or self.end is None:
            return None
        slot = torch.arange(self.slots, dtype=torch.long, device=self.keys.device)
        return (slot >= self.first[:, None]) & (slot < self.end[:, None])

    def decay_behind_padding(self, dtype: torch.dtype) -> Tensor | None:
        """The log decay, -inf at the first token of every sequence: nothing is left of the padding in front of it."""
        if self.first is None:
            return self.log_decay
        a_BSG = self.log_decay
        if a_BSG is None:
            a_BSG = self.keys.new_zeros(self.keys.shape[:3], dtype=dtype)
        slot = torch.arange(self.slots, dtype=torch.long, device=self.keys.device)
        return a_BSG.masked_fill((slot == self.first[:, None])[..., None], -math.inf)

    def after(self, start: int) -> TokenState:
        """The tokens in the slots from `start` on, right-aligned."""
        if self.first is None:
            decay = None if self.log_decay is None else self._own(self.log_decay, start)
            return TokenState(self._own(self.keys, start), self._own(self.values, start), decay)
        return self._aligned(self.slots - start, self.first.clamp(min=start))

    def last(self, count: int) -> TokenState:
        """The last `count` tokens of every sequence, right-aligned."""
        if self.first is None:
            return self.after(max(self.slots - count, 0))
        return self._aligned(min(count, self.slots), self.first)

    def _own(self, tokens: Tensor, start: int) -> Tensor:
        """A state shares no memory with the caller's tensors, and a view would keep alive all that it was cut from."""
        if self.slots == self.new:
            return (tokens[:, start:] if start else tokens).clone(memory_format=torch.contiguous_format)
        return tokens if start == 0 else without_first(tokens, start)

    def _aligned(self, kept: int, begin: Tensor) -> TokenState:
        """The last `kept` slots of every sequence that ends at `end`; those before slot `begin` are padding."""
        assert self.end is not None
        slot = torch.arange(kept, dtype=torch.long, device=self.keys.device) + self.end[:, None] - kept
        keep = slot >= begin[:, None]

        def aligned(tensor: Tensor) -> Tensor:
            trailing = (1,) * (tensor.dim() - 2)
            index = slot.clamp(min=0).view(*slot.shape, *trailing).expand(-1, -1, *tensor.shape[2:])
            # filled, not multiplied: a log decay may be -inf
            return tensor.gather(1, index).masked_fill(keep.logical_not().view(*slot.shape, *trailing), 0)

        decay = None if self.log_decay is None else aligned(self.log_decay)
        return TokenState(aligned(self.keys), aligned(self.values), decay, keep.sum(1))


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, T, ...) with zeros behind the first `lengths` tokens of each sequence."""
    if lengths is None:
        return x
    real = torch.arange(x.shape[1], dtype=torch.long, device=x.device) < lengths[:, None]
    return x.masked_fill(real.logical_not().view(*real.shape, *(1,) * (x.dim() - 2)), 0)


def _join_decay(kept: Tensor | None, new: Tensor | None, slots: int) -> Tensor | None:
    """Tokens that came without decay had the log decay 0."""
    if new is None:
        return None
    if kept is None:
        kept = new.new_zeros(new.shape[0], slots, new.shape[2])
    return append(kept.to(new.dtype), new)
