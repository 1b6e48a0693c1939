"""What softmax over L Gaussian tokens returns for a query of each size: one table of it serves every law of queries.

Only the channel of the tokens along the query a decides their weights p. Along it the error is Σ p_i x_i − |a|; across it,
given the weights, every channel is Gaussian with variance Σ p².
"""

# N prompts, L tokens, S sizes of the query

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.experiments.long_prompt.draws import chunks, draw

# between them the logarithms are straight lines to 1 %
SIZES = (*(0.2 * step for step in range(1, 31)), *(6.0 + 0.5 * step for step in range(1, 13)))
TOKENS_AT_ONCE = 2**16  # each token has a weight for every size


@dataclass(frozen=True)
class Table:
    """At queries of SIZES: the means over prompts of (Σ p_i x_i − |a|)², of Σ p², and of 1 − Σ p_i x_i/|a|."""

    length: int
    error_S: Tensor
    concentration_S: Tensor
    shrinkage_S: Tensor

    @classmethod
    def drawn(cls, length: int, prompts: int, source: torch.Generator) -> Table:
        size_S = torch.tensor(SIZES, dtype=torch.float64, device="cpu")
        error_S, concentration_S, shrinkage_S = torch.zeros(3, len(SIZES), dtype=torch.float64, device="cpu")
        for count in chunks(prompts, length, TOKENS_AT_ONCE):
            x_NL = draw("gaussian", (count, length), source)
            below_NL = x_NL - x_NL.amax(-1, keepdim=True)  # |a| ≥ 0: no weight above 1
            weight_NSL = torch.exp(size_S[:, None] * below_NL[:, None])
            both_NS2 = weight_NSL @ torch.stack([x_NL, torch.ones_like(x_NL)], -1)
            total_NS = both_NS2[..., 1]
            missed_NS = both_NS2[..., 0] / total_NS - size_S
            error_S += missed_NS.square().sum(0)
            shrinkage_S -= missed_NS.sum(0) / size_S
            concentration_S += (torch.linalg.vector_norm(weight_NSL, dim=-1) / total_NS).square().sum(0)
        return cls(length, error_S / prompts, concentration_S / prompts, shrinkage_S / prompts)

    def error(self, size: Tensor) -> Tensor:
        return self._between(self.error_S.log(), -math.log(self.length), size).exp()

    def concentration(self, size: Tensor) -> Tensor:
        return self._between(self.concentration_S.log(), -math.log(self.length), size).exp()

    def shrinkage(self, size: Tensor) -> Tensor:
        """Not by its logarithm: few prompts may give a negative one."""
        return self._between(self.shrinkage_S, 1 / self.length, size)

    @staticmethod
    def _between(value_S: Tensor, first: float, size: Tensor) -> Tensor:
        """By straight lines. first: at size 0, where all weights are 1/L, and so are all three means."""
        known = torch.tensor((0.0, *SIZES), dtype=torch.float64, device="cpu")
        value = torch.cat([torch.tensor([first], dtype=torch.float64, device="cpu"), value_S])
        right = torch.searchsorted(known, size).clamp(1, len(known) - 1)
        share = (size - known[right - 1]) / (known[right] - known[right - 1])
        return value[right - 1] + share * (value[right] - value[right - 1])
