"""The selective scan as a torch operator: forward, backward, shapes for the compiler, flops."""

# B batch, T time, C channels, N state dimensions

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Selective, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {"x": "BTC", "dt": "BTC", "rate": "CN", "b": "BTN", "c": "BTN", "start": "BCN", "dy": "BTC", "dnew_state": "BCN"}
)
INPUTS = "Tensor x, Tensor dt, Tensor rate, Tensor b, Tensor c, Tensor? start"
CHANNELS = 64  # a task's: the kernel returns the gradients of b and c in as many parts, so that tasks do not wait


def _dense(
    x: Tensor, dt: Tensor, rate: Tensor, b: Tensor, c: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    return rows(x), rows(dt), rate.contiguous(), rows(b), rows(c), None if start is None else start.contiguous()


def _call(x: Tensor, dt: Tensor, rate: Tensor, b: Tensor, c: Tensor, start: Tensor | None) -> Selective:
    """The struct that the kernels take. It points into the tensors, which the caller keeps alive."""
    call = Selective(*x.shape, rate.shape[1], rate=pointer(rate), start=pointer(start))
    call.x, call.dt, call.b, call.c = (Strided.of(tensor) for tensor in (x, dt, b, c))
    return call


def _fake(x: Tensor, dt: Tensor, rate: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shapes = (x.shape, (x.shape[0], *rate.shape))
    y, state = (torch.empty(shape, dtype=x.dtype, device=x.device) for shape in shapes)
    return y, state


def _backward_fake(dy: Tensor, dnew_state: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(0 if x is None else x.shape, dtype=dy.dtype, device=dy.device) for x in inputs)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dy: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
    found = torch.ops.maclaurin.selective_scan_backward(dy, dnew_state, *saved)
    return tuple(None if x is None else gradient for x, gradient in zip(saved, found, strict=True))


def _entries(x: Any, rate: Any) -> int:
    return int(x[0] * x[1] * x[2] * rate[1])


def _flops(x: Any, dt: Any, rate: Any, *_: Any, **__: Any) -> int:
    return 6 * _entries(x, rate)


def _backward_flops(dy: Any, dnew_state: Any, x: Any, dt: Any, rate: Any, *_: Any, **__: Any) -> int:
    return 18 * _entries(x, rate)


@operator(
    f"selective_scan({INPUTS}) -> (Tensor, Tensor)", shapes=SHAPES, fake=_fake, flops=_flops, save=_keep, backward=_gradients
)
def selective_scan(*inputs: Any) -> tuple[Tensor, Tensor]:
    """y (B,T,C) of x, dt (B,T,C), rate (C,N), b, c (B,T,N) and the state before (B,C,N); and the state after."""
    x, dt, rate, b, c, start = _dense(*inputs)
    y, state = buffer(*x.shape), buffer(x.shape[0], *rate.shape)
    call = _call(x, dt, rate, b, c, start)
    call.y, call.new_state = Strided.of(y), pointer(state)
    run("selective_forward", call)
    return y, state


@operator(
    f"selective_scan_backward(Tensor dy, Tensor dnew_state, {INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def selective_scan_backward(dy: Tensor, dnew_state: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """The gradients of all inputs; that of an absent start is empty."""
    x, dt, rate, b, c, start = _dense(*inputs)
    dy, dnew_state = rows(dy), dnew_state.contiguous()
    (B, T, C), N = x.shape, rate.shape[1]
    groups = -(-C // CHANNELS)
    dx, ddt, dstart = buffers_like(x, dt, start)
    drate, db, dc = buffer(B, C, N), buffer(B, T, groups, N), buffer(B, T, groups, N)
    call = _call(x, dt, rate, b, c, start)
    call.dy, call.dx, call.ddt, call.db, call.dc = (Strided.of(tensor) for tensor in (dy, dx, ddt, db, dc))
    call.drate, call.dnew_state, call.dstart = pointer(drate), pointer(dnew_state), pointer(dstart)
    run("selective_backward", call)
    return dx, ddt, drate.sum(0), db.sum(2), dc.sum(2), dstart
