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


SMALLEST_HALF = 16  # tokens: the exponentials of all their pairs are few enough to write out


def pairs_by_channel(q_NRCK: Tensor, k_NCK: Tensor, sums_NCK: Tensor) -> Tensor:
    """The weights w_ij = Σ_c q_ic k_jc exp(L_ic - L_jc) of a chunk's own pairs (N,R,C,C), with one decay per channel.

    Splitting the exponential as exp(L_i)·exp(-L_j) would overflow, so the chunk is halved: queries of the second half meet
    keys of the first through the sum at the middle, where both factors are at most 1, and each half is halved again.
    """
    C, dtype = k_NCK.shape[1], q_NRCK.dtype
    if C <= SMALLEST_HALF:
        decay_NKCC = between(sums_NCK.transpose(1, 2), sums_NCK.transpose(1, 2), dtype)
        return torch.einsum("nrck,njk,nkcj->nrcj", q_NRCK, k_NCK, decay_NKCC)
    half = C // 2
    middle_N1K = sums_NCK[:, half - 1 : half]
    first, second = slice(None, half), slice(half, None)
    cross = torch.einsum(
        "nrck,njk->nrcj",
        q_NRCK[:, :, second] * factor(sums_NCK[:, second] - middle_N1K, dtype)[:, None],
        k_NCK[:, first] * factor(middle_N1K - sums_NCK[:, first], dtype),
    )
    top = pairs_by_channel(q_NRCK[:, :, first], k_NCK[:, first], sums_NCK[:, first])
    bottom = pairs_by_channel(q_NRCK[:, :, second], k_NCK[:, second], sums_NCK[:, second])
    top = torch.cat([top, top.new_zeros(*top.shape[:-1], C - half)], dim=-1)
    return torch.cat([top, torch.cat([cross, bottom], dim=-1)], dim=-2)
