"""The causal short convolution as a torch operator: forward, backward, shapes for the compiler, flops."""

# B batch, T time, C channels, W width, P = W-1

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import gpu
from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Conv, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {"x": "BTC", "weight": "CW", "bias": "C", "before": "BPC", "dy": "BTC"},
    derived={"P": lambda size: size["W"] - 1},
    rules={"a width of at least 1": lambda size: size["W"] >= 1},
)
INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor? before, bool silu"


def _call(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool) -> Conv:
    call = Conv(*x.shape, weight.shape[1], silu=silu, weight=pointer(weight), bias=pointer(bias))
    call.x = Strided.of(x)
    if before is not None and before.shape[1]:
        call.before = Strided.of(before)
    return call


def _dense(weight: Tensor, bias: Tensor | None, before: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return weight.contiguous(), None if bias is None else bias.contiguous(), None if before is None else rows(before)


def _fake(x: Tensor, *_: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _backward_fake(dy: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(dy.new_empty(0) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs[:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
    found = torch.ops.maclaurin.short_conv_backward(dy, *saved, ctx.silu)
    return *(None if x is None else gradient for x, gradient in zip(saved, found, strict=True)), None


def _taps(x: Any, weight: Any) -> int:
    return int(x[0] * x[1] * x[2] * weight[1])


def _flops(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * _taps(x, weight)


def _backward_flops(dy: Any, x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 4 * _taps(x, weight)


@operator(
    f"short_conv({INPUTS}) -> Tensor",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
    on_gpu=gpu.kernel("conv", "short_conv"),
)
def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool) -> Tensor:
    """x (B,T,C), weight (C,width), bias (C,), and the width-1 inputs before x (B,width-1,C), zeros if absent."""
    x = rows(x)
    weight, bias, before = _dense(weight, bias, before)
    y = buffer(*x.shape)
    call = _call(x, weight, bias, before, silu)
    call.y = Strided.of(y)
    run("conv_forward", call)
    return y


@operator(
    f"short_conv_backward(Tensor dy, {INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
    on_gpu=gpu.kernel("conv", "short_conv_backward"),
)
def short_conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool
) -> tuple[Tensor, ...]:
    """The gradients of x, weight, bias and before; those of absent ones are empty."""
    dy, x = rows(dy), rows(x)
    weight, bias, before = _dense(weight, bias, before)
    dx, dweight, dbias, dbefore = buffers_like(x, weight, bias, before)
    call = _call(x, weight, bias, before, silu)
    call.dy, call.dx, call.dweight, call.dbias = Strided.of(dy), Strided.of(dx), pointer(dweight), pointer(dbias)
    if dbefore.numel():
        call.dbefore = Strided.of(dbefore)
    run("conv_backward", call)
    return dx, dweight, dbias, dbefore
