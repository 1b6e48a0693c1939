"""Decays in log space: sums that never lose a small difference, and exponentials that never overflow.

exp(x) is exactly zero in float64 below -746, so log decays are clamped at -750: nothing changes in any result, and the
sums over a chunk stay small enough for float64 to keep a lag-1 difference to 1e-11 even beside decays of -1e4. A global
float32 sum over 8192 tokens would lose 2.4e-4 there.

Factors so small that a product with them could be subnormal (below 1e-26 in float32) are set to zero: arithmetic on
subnormal numbers is ten to a hundred times slower on a CPU, and decays of whole chunks are full of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import threshold

SMALLEST_LOG_DECAY = -750.0


def cumulative(log_decay: Tensor, dim: int, smallest: float = SMALLEST_LOG_DECAY) -> Tensor:
    """Inclusive sums of log decay along time, in the widest dtype."""
    return log_decay.to(widest(log_decay.device)).clamp(min=smallest).cumsum(dim)


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def factor(log_factor: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(log_factor) in `dtype`, zero where a product with it could be subnormal."""
    smallest = math.log(torch.finfo(dtype).tiny) + 27
    # exp itself sees ordinary numbers only: of -inf, or of what underflows, it is four to eight times slower
    return threshold(log_factor.to(dtype).clamp(min=smallest).exp(), math.exp(smallest) * 1.001, 0)


def between(sums_q: Tensor, sums_k: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(sums_q[t] - sums_k[s]) as a (..., T, S) matrix for queries that are the last T of the S keys.

    Zero above the diagonal, where the difference is positive and is cut to 0 before it is exponentiated.
    """
    T, S = sums_q.shape[-1], sums_k.shape[-1]
    difference = (sums_q[..., :, None] - sums_k[..., None, :]).to(dtype)
    return factor(difference.clamp(max=0), dtype).tril(S - T)


def causal_mask(T: int, S: int, device: torch.device, window: int | None = None) -> Tensor:
    """(T, S) bool: which of S keys each of the last T positions sees, itself and at most window-1 before it."""
    queries, keys = (torch.arange(start, S, dtype=torch.long, device=device) for start in (S - T, 0))
    lag = queries[:, None] - keys
    return lag >= 0 if window is None else (lag >= 0) & (lag < window)
