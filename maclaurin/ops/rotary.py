"""Turning pairs of channels: by given angles, or by rotary positions, where pair i turns by position · theta^(-2i/K).

The angles of positions are computed in float64 and only their sines and cosines are rounded: they are exact at any length
and in any input dtype. (bfloat16 positions, as some published runs had them, merge 2048 positions into 641.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import native
from maclaurin.ops.arithmetic import repeat_heads
from maclaurin.ops.backends import reason_for_torch
from maclaurin.ops.checks import shape, tensor
from maclaurin.ops.decay import widest
from maclaurin.ops.native.turn import pairs
from maclaurin.ops.transforms import is_transformed


def rotary(x: Tensor, positions: Tensor, *, theta: float = 10000.0, interleaved: bool = False) -> Tensor:
    """x (B,T,H,K) turned by positions (T,) or (B,T). Pairs are (i, i+K/2), or (2i, 2i+1) if interleaved."""
    tensor("x", x, "batch, time, heads, channels")
    K = x.shape[-1]
    if K % 2:
        raise ValueError(f"rotary positions need an even number of channels per head, got {K}")
    if not isinstance(positions, Tensor) or positions.shape != x.shape[1 if positions.dim() == 1 else 0 : 2]:
        got = shape(positions) if isinstance(positions, Tensor) else type(positions).__name__
        raise ValueError(f"positions must have shape ({x.shape[1]},) or {tuple(x.shape[:2])}, got {got}")
    return rotate(x, _angles(x, positions, K, theta), interleaved=interleaved)


def _angles(x: Tensor, positions: Tensor, K: int, theta: float) -> Tensor:
    """(B or 1, T, 1, K/2)"""
    wide = widest(x.device)
    frequency = theta ** (-torch.arange(0, K, 2, dtype=wide, device=x.device) / K)
    angles = positions.to(wide)[..., None, None] * frequency
    return angles if angles.dim() == 4 else angles[None]


def split_and_turned(
    qkv: Tensor, heads: tuple[int, int], widths: tuple[int, int], positions: Tensor, *, theta: float, interleaved: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B,T,H,K) and k (B,T,G,K), turned as `rotary` does, and v (B,T,F,V), from qkv (B,T,HK+GK+FV): heads are H and G,
    widths K and V. Sines are computed once for both, and the gradient of qkv is written where it belongs, not in three
    parts that are put together."""
    plain = type(qkv) is Tensor and qkv.requires_grad and not (torch.compiler.is_compiling() or is_transformed())
    if not plain or qkv.dtype != torch.float32 or reason_for_torch("auto", qkv, qkv.dtype) is not None:
        q, k, v = _split(qkv, heads, widths)
        q, k = (rotary(part, positions, theta=theta, interleaved=interleaved) for part in (q, k))
        return q, k, v
    angles = _angles(qkv, positions, widths[0], theta)
    cos, sin = (part.float().expand(qkv.shape[0], -1, -1, -1) for part in (angles.cos(), angles.sin()))
    q, k, v = _SplitAndTurned.apply(qkv, heads, widths, cos, sin, interleaved)
    return q, k, v


def _split(qkv: Tensor, heads: tuple[int, int], widths: tuple[int, int]) -> list[Tensor]:
    K, V = widths
    parts = qkv.split([heads[0] * K, heads[1] * K, qkv.shape[-1] - sum(heads) * K], dim=-1)
    return [part.unflatten(-1, (-1, width)) for part, width in zip(parts, (K, K, V), strict=True)]


class _SplitAndTurned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: tuple[int, int], widths: tuple[int, int], cos: Tensor, sin: Tensor, interleaved: bool
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        q, k, v = _split(qkv, heads, widths)
        q, k = (
            native.call("turn", x, *(part.expand(-1, -1, x.shape[2], -1) for part in (cos, sin)), interleaved, False)
            for x in (q, k)
        )
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if torch.is_grad_enabled():
            *turned, dv = gradients
            parts = *(_turned(x, cos, -sin, ctx.interleaved) for x in turned), dv
            return torch.cat([x.flatten(2) for x in parts], dim=-1), *(None,) * 5
        return native.call("turned_back", *gradients, cos, sin, ctx.interleaved), *(None,) * 5


def rotate(x: Tensor, angles: Tensor, *, interleaved: bool = False) -> Tensor:
    """x (B,T,H,K) turned by angles (B or 1, T, G, K/2); each of the G serves H/G heads. Pairs as in `rotary`."""
    tensor("x", x, "batch, time, heads, channels")
    tensor("angles", angles, "batch, time, heads, pairs")
    B, T, H, K = x.shape
    G = angles.shape[2]
    if angles.shape[0] not in (1, B) or angles.shape[1] != T or G == 0 or H % G or 2 * angles.shape[3] != K:
        raise ValueError(f"angles must match x {shape(x)} in batch, time, heads and pairs of channels, got {shape(angles)}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (repeat_heads(part.to(dtype), H) for part in (angles.cos(), angles.sin()))
    plain = type(x) is Tensor and not (torch.compiler.is_compiling() or is_transformed())
    if plain and reason_for_torch("auto", x, dtype) is None:
        of_all = (part.expand(B, -1, -1, -1) for part in (cos, sin))
        turned: Tensor = native.call("turn", x.to(dtype), *of_all, interleaved, False)
    else:
        turn = _Turn.apply if plain and not angles.requires_grad else _turned
        turned = turn(x.to(dtype), cos, sin, interleaved)
    return turned.to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    first, second = pairs(x, interleaved)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


class _Turn(torch.autograd.Function):
    """`_turned` by angles that need no gradient: four passes over the tokens each way, in place of fourteen in all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        (first, second), (to_first, to_second) = pairs(x, interleaved), pairs(turned, interleaved)
        torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=to_second).addcmul_(first, sin)
        return turned

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _Turn.apply(dy, cos, -sin, ctx.interleaved), None, None, None
