"""Sums of log2 decay over a whole sequence, as the kernels take them, and which blocks decay leaves anything of."""

# B batch, G key-value heads, S positions

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops import decay

LOG2E = math.log2(math.e)
NEGLIGIBLE = math.log2(1e-26)  # as in `ops/decay.py`


@dataclass(frozen=True)
class Sums:
    """Of log2 decay, inclusive, (B,G,S). exact is float64, None without decay; hi + lo are its two halves in float32."""

    exact: Tensor | None
    hi: Tensor
    lo: Tensor

    @staticmethod
    def of(log_decay_BSG: Tensor | None, like: Tensor, smallest: float = decay.SMALLEST_LOG_DECAY) -> Sums:
        if log_decay_BSG is None:
            nothing = torch.zeros(1, dtype=torch.float32, device=like.device)
            return Sums(None, nothing, nothing)
        exact = (decay.cumulative(log_decay_BSG, 1, smallest) * LOG2E).transpose(1, 2).contiguous()
        hi = exact.float()
        return Sums(exact, hi, (exact - hi).float())

    def to_end(self, block: int) -> Tensor:
        """2^(A at the end of the block - A_s) for every token."""
        if self.exact is None:
            return self.hi
        S = self.exact.shape[2]
        end = (self._positions() // block * block + block - 1).clamp(max=S - 1)
        return (self.exact[:, :, end] - self.exact).float().exp2()

    def from_start(self, block: int, queries: int) -> Tensor:
        """2^(A_t - A of the first token of its block), the blocks being those of the last `queries` positions."""
        if self.exact is None:
            return self.hi
        first = self.exact.shape[2] - queries
        start = torch.arange(queries, device=self.hi.device, dtype=torch.long) // block * block + first
        return (self.exact[:, :, first:] - self.exact[:, :, start]).float().exp2()

    def from_before(self, block: int) -> Tensor:
        """2^(A_t - A of the last token before the block)"""
        if self.exact is None:
            return self.hi
        return (self.exact - pad(self.exact, (1, 0))[:, :, self._positions() // block * block]).float().exp2()

    def across(self, block: int) -> Tensor:
        """(B,G,blocks): the decay of whole blocks."""
        if self.exact is None:
            return self.hi
        S = self.exact.shape[2]
        starts = torch.arange(0, S, block, device=self.hi.device, dtype=torch.long)
        ends = (starts + block).clamp(max=S)
        sums = pad(self.exact, (1, 0))
        return (sums[:, :, ends] - sums[:, :, starts]).float().exp2()

    def first_blocks(self, queries: int, bm: int, bn: int) -> Tensor:
        """(B,G,query blocks): key blocks before it have decayed to nothing when the first query of the block comes."""
        if self.exact is None:
            return self.hi
        S = self.exact.shape[2]
        starts = torch.arange(0, queries, bm, device=self.hi.device, dtype=torch.long) + S - queries
        index = torch.searchsorted(-self.exact, -(self.exact[:, :, starts] - NEGLIGIBLE))
        return (index.clamp(max=S - 1) // bn).to(torch.int32)

    def last_blocks(self, queries: int, bm: int, bn: int) -> Tensor:
        """(B,G,key blocks): the query block behind the last one that anything of a key block reaches."""
        if self.exact is None:
            return self.hi
        S = self.exact.shape[2]
        ends = (torch.arange(0, S, bn, device=self.hi.device, dtype=torch.long) + bn - 1).clamp(max=S - 1)
        index = torch.searchsorted(-self.exact, -(self.exact[:, :, ends] + NEGLIGIBLE), right=True)
        return ((index - (S - queries)).clamp(min=0).add(bm - 1) // bm).to(torch.int32)

    def _positions(self) -> Tensor:
        return torch.arange(self.hi.shape[2], device=self.hi.device, dtype=torch.long)
