"""Queries and keys of fixed length: an RMS norm over the channels of each head, with a learned weight per head and channel.

    q ← w_q ⊙ q/rms(q);   k ← w_k ⊙ k/rms(k);   w = 1 at the start, so that q·k/√d lies between −√d and √d

The direction of a query says what it looks for, and the product of the weights of its head, the temperature, how sharply.
Where a power of the score stands alone behind its own sum a common factor cancels, and only the direction is left; beside
other orders or a window of softmax the temperature weighs them. Before rotary positions, as in Qwen3, whose weights are
common to all heads; OLMo 2 takes one norm over all heads.

Henry et al.: Query-Key Normalization for Transformers, arXiv 2010.04245, 2020.
Qwen Team: Qwen3 Technical Report, arXiv 2505.09388, 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maclaurin.ops.arithmetic import wide

EPS = 1e-6


class QKNorm(nn.Module):
    def __init__(self, query_heads: int, key_heads: int, key_dim: int) -> None:
        super().__init__()
        self.q_weight = nn.Parameter(torch.ones(query_heads, key_dim))
        self.k_weight = nn.Parameter(torch.ones(key_heads, key_dim))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, T, query heads, key_dim), k (B, T, key heads, key_dim)"""
        return _normalised(q, self.q_weight), _normalised(k, self.k_weight)


def _normalised(x: Tensor, weight: Tensor) -> Tensor:
    of_unit_size: Tensor = nn.functional.rms_norm(wide(x), x.shape[-1:], eps=EPS)
    return (of_unit_size * weight).to(x.dtype)
