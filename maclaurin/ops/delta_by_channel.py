"""The delta rule of order 1 with one decay per key channel, in chunks: the steps of `delta_chunked.py`.

A decay per channel is no number per pair, so the weights are those of `decay.pairs_by_channel`. Nothing is kept for the
backward but the inputs of a chunk: autograd runs it again.
"""

# N heads of the batch, R query heads per key-value head, X = 1+R readers: the key, then the queries; T time, C chunk,
# K key channels, V value channels

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from maclaurin.ops import decay
from maclaurin.ops.transforms import recomputed


def chunked(heads: Any, size: int) -> tuple[Tensor, Tensor]:
    """Outputs (N,R,T,V) and the state (N,K,V) after the last token; heads as in `delta_chunked.py`, log decays (N,T,K)."""
    q_NRTK, k_NTK, v_NTV, beta_NT, a_NTK, state_NKV = heads
    if state_NKV is None:
        state_NKV = v_NTV.new_zeros(k_NTK.shape[0], k_NTK.shape[2], v_NTV.shape[2])
    outputs = []
    for now in (slice(start, start + size) for start in range(0, k_NTK.shape[1], size)):
        tokens = (q_NRTK[:, :, now], k_NTK[:, now], v_NTV[:, now], beta_NT[:, now], a_NTK[:, now])
        y_NRCV, state_NKV = recomputed(_chunk, *tokens, state_NKV)
        outputs.append(y_NRCV)
    return torch.cat(outputs, dim=2), state_NKV


def _chunk(
    q_NRCK: Tensor, k_NCK: Tensor, v_NCV: Tensor, beta_NC: Tensor, a_NCK: Tensor, state_NKV: Tensor
) -> tuple[Tensor, Tensor]:
    dtype = q_NRCK.dtype
    sums_NCK = decay.cumulative(a_NCK, 1)
    readers_NXCK = torch.cat([k_NCK[:, None], q_NRCK], dim=1)
    weight_NXCC = decay.pairs_by_channel(readers_NXCK, k_NCK, sums_NCK)
    read_NXCV = (readers_NXCK * decay.factor(sums_NCK, dtype)[:, None]) @ state_NKV[:, None]
    system_NCC = weight_NXCC[:, 0] * beta_NC[:, None]
    error_NCV = solve_triangular(system_NCC, v_NCV - read_NXCV[:, 0], upper=False, unitriangular=True)
    u_NCV = beta_NC[..., None] * error_NCV
    y_NRCV = read_NXCV[:, 1:] + weight_NXCC[:, 1:] @ u_NCV[:, None]
    left_NCK = k_NCK * decay.factor(sums_NCK[:, -1:] - sums_NCK, dtype)
    kept_NKV = state_NKV * decay.factor(sums_NCK[:, -1:], dtype).transpose(1, 2)
    return y_NRCV, torch.baddbmm(kept_NKV, left_NCK.transpose(1, 2), u_NCV)
