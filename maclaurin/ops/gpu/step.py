"""Launches of one decoding step: `maclaurin::chunked` of a single query on a GPU."""

# B batch, S keys (buffered ones and the new one), H heads, G key-value heads, K, V channels, F, W as in `chunked.py`

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops.gpu import layout, step_kernels
from maclaurin.ops.gpu.availability import INTERPRETED
from maclaurin.ops.gpu.direct import blocks, strides
from maclaurin.ops.gpu.sums import Sums
from maclaurin.ops.gpu.tiles import IEEE, width

SPLITS = 16  # programs that share the state of a head
FEATURES_AT_ONCE = 32


def step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor, scale: float, normalize: bool
) -> tuple[Tensor, Tensor]:
    """y (B,1,H,V) and its divisors (B,1,H); q (B,1,H,K), the state (B,G,F,W) packed."""
    B, _, H, K = q.shape
    S, G, V = k.shape[1], k.shape[2], v.shape[3]
    q, k, v, state = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, state.contiguous()))
    sums = Sums.of(log_decay, q)
    F, W = state.shape[2:]
    wide = width(W)
    features = blocks(blocks(F, SPLITS), FEATURES_AT_ONCE) * FEATURES_AT_ONCE
    splits = blocks(F, features)
    parts = torch.empty(B * G, splits, H // G, wide, dtype=torch.float32, device=q.device)
    options = {} if INTERPRETED else {"num_warps": 4}
    first, second = layout.channels(K, q.device)
    (sqb, _, sqh) = strides(q)
    step_kernels.step_read[(splits, B * G)](
        q, state, first, second, parts, sqb, sqh, F, W, G,
        WIDE=wide, BF=FEATURES_AT_ONCE, FEATURES=features, R=H // G, **options,
    )  # fmt: skip
    y = torch.empty(B, 1, H, V, dtype=q.dtype, device=q.device)
    total = torch.empty(B, 1, H, dtype=torch.float32, device=q.device)
    size = state[:, :, layout.diagonal(K, q.device), -1].sum(2) if normalize else parts
    step_kernels.step_join[(B * H,)](
        q, k, v, sums.hi, sums.lo, parts, size, y, total, sqb, sqh, *strides(k, v), S, H, G, K, V, splits, scale**2,
        IEEE.guard, BK=width(K), BV=width(V), WIDE=wide, BS=32, DECAY=log_decay is not None, NORMALIZE=normalize, **options,
    )  # fmt: skip
    return y, total
