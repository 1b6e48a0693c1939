"""Launches of `maclaurin::short_conv` and its backward on a GPU."""

# B batch, T time, C channels, W taps

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops.gpu import conv_kernels as kernels
from maclaurin.ops.gpu.direct import blocks

TOKENS, CHANNELS = 32, 64  # of a program


def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool) -> Tensor:
    return _forward(_with_past(x, before, weight.shape[1]), weight, bias, silu, x.dtype)


def short_conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool
) -> tuple[Tensor, ...]:
    """The gradients of x, weight, bias and before; those of absent ones are empty."""
    (B, T, C), W = x.shape, weight.shape[1]
    dz = torch.empty(B, T, C, dtype=torch.float32, device=x.device)
    sums = torch.empty(B, blocks(T, TOKENS), W + 1, C, dtype=torch.float32, device=x.device)
    padded = _with_past(x, before, W)
    kernels.conv_backward[_grid(B, T, C)](
        padded, weight.contiguous(), weight if bias is None else bias.contiguous(), dy.contiguous(), dz, sums, T, C,
        W=W, HAS_BIAS=bias is not None, SILU=silu, BT=TOKENS, BC=CHANNELS,
    )  # fmt: skip
    total = sums.sum((0, 1))
    # the gradient of a convolution by its input is one with the taps turned around
    d_padded = _forward(pad(dz, (0, 0, W - 1, W - 1)), weight.flip(1), None, False, x.dtype)
    d_bias = dy.new_empty(0) if bias is None else total[W].to(bias.dtype)
    d_before = dy.new_empty(0) if before is None else d_padded[:, : W - 1].to(before.dtype).contiguous()
    return d_padded[:, W - 1 :].contiguous(), total[:W].T.to(weight.dtype).contiguous(), d_bias, d_before


def _with_past(x: Tensor, before: Tensor | None, width: int) -> Tensor:
    if before is None:
        return pad(x, (0, 0, width - 1, 0)).contiguous()
    return torch.cat([before.to(x.dtype), x], dim=1)


def _forward(padded: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, dtype: torch.dtype) -> Tensor:
    (B, length, C), W = padded.shape, weight.shape[1]
    T = length - W + 1
    y = torch.empty(B, T, C, dtype=dtype, device=padded.device)
    kernels.conv_forward[_grid(B, T, C)](
        padded, weight.contiguous(), weight if bias is None else bias.contiguous(), y, T, C,
        W=W, HAS_BIAS=bias is not None, SILU=silu, BT=TOKENS, BC=CHANNELS,
    )  # fmt: skip
    return y


def _grid(B: int, T: int, C: int) -> tuple[int, int, int]:
    return blocks(T, TOKENS), blocks(C, CHANNELS), B
