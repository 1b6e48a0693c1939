"""The elementwise recurrence as a torch operator: forward, backward, shapes for the compiler, flops."""

# B batch, T time, C channels

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Scan, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes({"log_decay": "BTC", "x": "BTC", "y": "BTC", "dy": "BTC", "start": "BC"})
INPUTS = "Tensor log_decay, Tensor? start"


def _fake(x: Tensor, *_: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _backward_fake(dy: Tensor, y: Tensor, log_decay: Tensor, start: Tensor | None) -> tuple[Tensor, ...]:
    like = (y, log_decay, start)
    return tuple(torch.empty(0 if x is None else x.shape, dtype=dy.dtype, device=dy.device) for x in like)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[1:])


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
    found = torch.ops.maclaurin.linear_scan_backward(dy, *saved)
    return tuple(None if x is None else gradient for x, gradient in zip(saved, found, strict=True))


def _flops(x: Any, *_: Any, **__: Any) -> int:
    return int(2 * x[0] * x[1] * x[2])


def _backward_flops(dy: Any, *_: Any, **__: Any) -> int:
    return int(3 * dy[0] * dy[1] * dy[2])


@operator(
    f"linear_scan(Tensor x, {INPUTS}) -> Tensor", shapes=SHAPES, fake=_fake, flops=_flops, save=_keep, backward=_gradients
)
def linear_scan(x: Tensor, log_decay: Tensor, start: Tensor | None) -> Tensor:
    """All h of x and log_decay (B,T,C), from `start` (B,C) or zero."""
    x, log_decay = rows(x), rows(log_decay)
    start = None if start is None else start.contiguous()
    y = buffer(*x.shape)
    call = Scan(*x.shape, x=Strided.of(x), log_decay=Strided.of(log_decay), y=Strided.of(y), start=pointer(start))
    run("scan_forward", call)
    return y


@operator(
    f"linear_scan_backward(Tensor dy, Tensor y, {INPUTS}) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def linear_scan_backward(dy: Tensor, y: Tensor, log_decay: Tensor, start: Tensor | None) -> tuple[Tensor, ...]:
    """The gradients of x, log_decay and start, from the outputs y; that of an absent start is empty."""
    dy, y, log_decay = rows(dy), rows(y), rows(log_decay)
    start = None if start is None else start.contiguous()
    dx, da, dstart = buffers_like(y, log_decay, start)
    call = Scan(*y.shape, log_decay=Strided.of(log_decay), y=Strided.of(y), start=pointer(start), dstart=pointer(dstart))
    call.dy, call.dx, call.dlog_decay = Strided.of(dy), Strided.of(dx), Strided.of(da)
    run("scan_backward", call)
    return dx, da, dstart
