"""Launches of softmax with decay: `maclaurin::quadratic` with exponential scores, and its backward, on a GPU."""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops.gpu import softmax_kernels as kernels
from maclaurin.ops.gpu.direct import Call, Gradients, blocks, joined, padded, strides, value_blocks
from maclaurin.ops.gpu.sums import LOG2E

SMALLEST_LOG_DECAY = -1e5  # as in `ops/softmax.py`: here a decay competes with scores, which may be large themselves


def forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, window: int) -> tuple[Tensor, Tensor]:
    """window: how many tokens a query sees, itself included; 0 for all."""
    parts = [
        _some_values(Call.of(q, k, v[..., some], log_decay, scale, True, SMALLEST_LOG_DECAY), window)
        for some in value_blocks(v)
    ]
    return joined([y for y, _ in parts], -1).to(q.dtype), parts[0][1]


def _some_values(call: Call, window: int) -> tuple[Tensor, Tensor]:
    B, T, S, H, G = call.sizes
    tile = call.tiles.forward
    y, total = call.outputs()
    kernels.softmax_forward[(blocks(T, tile.bm), B * H)](
        call.q, call.k, call.v, call.sums.hi, call.sums.lo, y, total, *strides(call.q, call.k, call.v, y),
        T, S, H, G, window or S, call.scale * LOG2E, **call.flags(tile, "BM", "BN"),
    )  # fmt: skip
    return y[..., : call.value_channels].contiguous(), total


def backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, y: Tensor, total: Tensor,
    scale: float, window: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    delta = (y.float() * dy.float()).sum(-1).transpose(1, 2).contiguous()
    logs = total.transpose(1, 2).contiguous()
    found = Gradients()
    for some in value_blocks(v):
        call = Call.of(q, k, v[..., some], log_decay, scale, True, SMALLEST_LOG_DECAY)
        found.add(_gradients(call, window, logs, delta, padded(dy[..., some], call.q.dtype)), call.value_channels)
        delta = torch.zeros_like(delta)  # the divisor is one for all value channels
    return found.finished(q, k, v, log_decay, smallest=SMALLEST_LOG_DECAY)


def _gradients(call: Call, window: int, logs: Tensor, delta: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """dq, dk, dv in float32, and the sums of the gradients by scores, (B,H,T) and (B,G,S)."""
    B, T, S, H, G = call.sizes
    DK, DV = call.channels
    shapes = ((B, T, H, DK), (B, S, G, DK), (B, S, G, DV), (B, H, T), (B, G, S))
    dq, dk, dv, of_q, of_k = (torch.empty(shape, dtype=torch.float32, device=dy.device) for shape in shapes)
    given = (call.q, call.k, call.v, call.sums.hi, call.sums.lo, logs, dy, delta)
    common = (*strides(call.q, call.k, call.v, dy), T, S, H, G, window or S, call.scale * LOG2E, call.scale)
    tile = call.tiles.backward_kv
    kernels.softmax_backward_kv[(blocks(S, tile.bn), B * G)](*given, dk, dv, of_k, *common, **call.flags(tile, "BM", "BN"))
    tile = call.tiles.backward_q
    kernels.softmax_backward_q[(blocks(T, tile.bm), B * H)](*given, dq, of_q, *common, **call.flags(tile, "BM", "BN"))
    return dq, dk, dv, of_q, of_k
