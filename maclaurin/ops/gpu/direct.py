"""Launches of the direct form: `maclaurin::quadratic` and its backward on a GPU."""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops.decay import SMALLEST_LOG_DECAY
from maclaurin.ops.gpu import direct_kernels as kernels
from maclaurin.ops.gpu.availability import INTERPRETED
from maclaurin.ops.gpu.sums import Sums
from maclaurin.ops.gpu.tiles import LARGEST, Precision, Tile, Tiles, capability_of, precision_of, tiles_of, width


@dataclass(frozen=True)
class Call:
    """Queries, keys and at most `LARGEST` value channels as the kernels take them: zeros behind them change nothing."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    sums: Sums
    scale: float
    normalize: bool
    precision: Precision
    tiles: Tiles
    key_channels: int
    value_channels: int

    @staticmethod
    def of(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        scale: float,
        normalize: bool,
        smallest: float = SMALLEST_LOG_DECAY,
    ) -> Call:
        """smallest: below it a log decay makes no difference."""
        precision = precision_of(q.dtype, capability_of(q))
        dtype = torch.float32 if INTERPRETED or q.dtype == torch.float16 else q.dtype
        K, V = k.shape[3], v.shape[3]
        q, k, v = (padded(x, dtype) for x in (q, k, v))
        tiles = tiles_of(precision, max(k.shape[3], v.shape[3]), capability_of(q))
        return Call(q, k, v, log_decay, Sums.of(log_decay, q, smallest), scale, normalize, precision, tiles, K, V)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """B, T, S, H, G"""
        B, T, H, _ = self.q.shape
        return B, T, self.k.shape[1], H, self.k.shape[2]

    @property
    def channels(self) -> tuple[int, int]:
        """Padded, of keys and of values."""
        return self.k.shape[3], self.v.shape[3]

    def flags(self, tile: Tile, *blocks: str) -> dict[str, Any]:
        """What every kernel is compiled for, and how it runs. blocks: the names of the sides of its tile."""
        DK, DV = self.channels
        named = dict(zip(blocks, (tile.bm, tile.bn), strict=False))
        options = {} if INTERPRETED else {"num_warps": tile.warps, "num_stages": tile.stages}
        decay = self.sums.exact is not None
        return {"DK": DK, "DV": DV, "DECAY": decay, "P": self.precision.products, "EMULATE": INTERPRETED, **named, **options}

    def outputs(self) -> tuple[Tensor, Tensor]:
        """y (B,T,H,padded V), and the divisor of every output (B,T,H)."""
        B, T, _, H, _ = self.sizes
        y = torch.empty(B, T, H, self.v.shape[3], dtype=self.q.dtype, device=self.q.device)
        return y, torch.empty(B, T, H, dtype=torch.float32, device=self.q.device)


def padded(x: Tensor, dtype: torch.dtype) -> Tensor:
    x = x.to(dtype)
    if (missing := width(x.shape[3]) - x.shape[3]) > 0:
        return pad(x, (0, missing))
    return x if x.stride(3) == 1 else x.contiguous()


def strides(*tensors: Tensor) -> list[int]:
    return [x.stride(n) for x in tensors for n in (0, 1, 2)]


def blocks(length: int, size: int) -> int:
    return -(-length // size)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """torch.cat, which would copy a single part as well."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def value_blocks(v: Tensor) -> list[slice]:
    """Value channels, so many at a time as a kernel takes: outputs of the one know nothing of the others."""
    return [slice(start, start + LARGEST) for start in range(0, v.shape[3], LARGEST)]


def quadratic(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
    scale: float, exponential: bool, normalize: bool, window: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if exponential:
        from maclaurin.ops.gpu import softmax  # made of what is here

        return softmax.forward(q, k, v, log_decay, scale, window)
    parts = [_forward(Call.of(q, k, v[..., some], log_decay, scale, normalize)) for some in value_blocks(v)]
    return joined([y for y, _ in parts], -1).to(q.dtype), parts[0][1]


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    B, T, S, H, G = call.sizes
    tile, sums = call.tiles.forward, call.sums
    y, total = call.outputs()
    if T:
        kernels.direct_forward[(blocks(T, tile.bm), B * H)](
            call.q, call.k, call.v, sums.to_end(tile.bn), sums.hi, sums.lo, sums.first_blocks(T, tile.bm, tile.bn), y, total,
            *strides(call.q, call.k, call.v, y), T, S, H, G, call.scale**2,
            NORMALIZE=call.normalize, **call.flags(tile, "BM", "BN"),
        )  # fmt: skip
    return y[..., : call.value_channels].contiguous(), total


def quadratic_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, y: Tensor, total: Tensor,
    scale: float, exponential: bool, normalize: bool, window: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    if exponential:
        from maclaurin.ops.gpu import softmax

        return softmax.backward(dy, q, k, v, log_decay, y, total, scale, window)
    c, delta = divisors(y, dy, total, scale, normalize)
    found = Gradients()
    for some in value_blocks(v):
        call = Call.of(q, k, v[..., some], log_decay, scale, normalize)
        found.add(direct_gradients(call, c, delta, padded(dy[..., some], call.q.dtype), 0), call.value_channels)
        delta = torch.zeros_like(delta)  # the divisor is one for all value channels
    return found.finished(q, k, v, log_decay)


def divisors(y: Tensor, dy: Tensor, total: Tensor, scale: float, normalize: bool) -> tuple[Tensor, Tensor]:
    """(B,H,T): by what the weights of a row are multiplied, and y·dy."""
    total_BHT = total.transpose(1, 2).contiguous()
    if not normalize:
        return torch.full_like(total_BHT, scale**2), torch.zeros_like(total_BHT)
    return 1 / total_BHT.abs(), (y.float() * dy.float()).sum(-1).transpose(1, 2).contiguous()


def direct_gradients(call: Call, c: Tensor, delta: Tensor, dy: Tensor, span: int) -> tuple[Tensor, ...]:
    """dq, dk, dv in float32, and half of q·dq (B,H,T) and of k·dk (B,G,S)."""
    B, T, S, H, G = call.sizes
    DK, DV = call.channels
    sums, device = call.sums, c.device
    dq, dk, dv = (
        torch.empty(shape, dtype=torch.float32, device=device) for shape in ((B, T, H, DK), (B, S, G, DK), (B, S, G, DV))
    )
    half_q, half_k = torch.empty_like(c), torch.empty(B, G, S, dtype=torch.float32, device=device)
    common = (*strides(call.q, call.k, call.v, dy), T, S, H, G, span)
    tile = call.tiles.backward_kv
    from_start = c
    if sums.exact is not None:
        from_start = (c.unflatten(1, (G, -1)) * sums.from_start(tile.bm, T)[:, :, None]).flatten(1, 2)
    kernels.direct_backward_kv[(blocks(S, tile.bn), B * G)](
        call.q, call.k, call.v, from_start, c, sums.hi, sums.lo, sums.last_blocks(T, tile.bm, tile.bn), dy, delta,
        dk, dv, half_k, *common, **call.flags(tile, "BM", "BN"),
    )  # fmt: skip
    tile = call.tiles.backward_q
    kernels.direct_backward_q[(blocks(T, tile.bm), B * H)](
        call.q, call.k, call.v, sums.to_end(tile.bn), c, sums.hi, sums.lo, sums.first_blocks(T, tile.bm, tile.bn), dy, delta,
        dq, half_q, *common, **call.flags(tile, "BM", "BN"),
    )  # fmt: skip
    return dq, dk, dv, half_q, half_k


class Gradients:
    """Sums over blocks of value channels; the gradient of the decay comes last."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.values: list[Tensor] = []

    def add(self, found: tuple[Tensor, ...], value_channels: int) -> None:
        dq, dk, dv, half_q, half_k = found
        self.values.append(dv[..., :value_channels])
        new = [dq, dk, half_q, half_k]
        self.sums = [before + x for before, x in zip(self.sums, new, strict=True)] if self.sums else new

    def finished(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        extra: Tensor | None = None,
        smallest: float = SMALLEST_LOG_DECAY,
    ) -> tuple[Tensor, ...]:
        """Dense, in the dtypes of the inputs; empty where there is no decay. extra (B,G): what all decays pass on."""
        dq, dk, half_q, half_k = self.sums
        dv = joined(self.values, -1)
        K = k.shape[3]
        da = q.new_empty(0) if log_decay is None else _of_decay(log_decay, half_q, half_k, extra, smallest)
        return (*((x.to(like.dtype)).contiguous() for x, like in ((dq[..., :K], q), (dk[..., :K], k), (dv, v))), da)


def _of_decay(log_decay: Tensor, half_q: Tensor, half_k: Tensor, extra: Tensor | None, smallest: float) -> Tensor:
    """da_u = Σ_{t>=u} (q·dq - k·dk)/2, the queries being the last of the keys."""
    G, S = half_k.shape[1:]
    d = -half_k.double()
    d[:, :, S - half_q.shape[2] :] += half_q.double().unflatten(1, (G, -1)).sum(2)
    if extra is not None:
        d[:, :, -1] += extra
    found = d.flip(2).cumsum(2).flip(2).transpose(1, 2) * (log_decay > smallest)
    return found.to(log_decay.dtype).contiguous()
