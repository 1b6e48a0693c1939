"""The gated recurrence as a torch operator: forward, backward, shapes for the compiler, flops."""

# B batch, T time, C channels, D = 3C gates

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Gated, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {"u": "BTC", "gates": "BTD", "g": "BTC", "start": "BC", "h": "BTC", "dy": "BTC", "dend": "BC"},
    rules={
        "three gates for each channel": lambda size: size["D"] == 3 * size["C"],
        "at least one token": lambda size: size["T"] > 0,
    },
)
INPUTS = "Tensor u, Tensor gates, Tensor g, Tensor? start"


def _fake(u: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    B, _, C = u.shape
    return u.new_empty(u.shape), u.new_empty(u.shape), u.new_empty(B, C)


def _backward_fake(u: Tensor, gates: Tensor, g: Tensor, start: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    du, dgates, dg = (u.new_empty(x.shape) for x in (u, gates, g))
    return du, dgates, dg, u.new_empty(u.shape[0], u.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, output[1])


def _gradients(ctx: Any, dy: Tensor | None, dh: None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, h = ctx.saved_tensors
    dy = torch.zeros_like(h) if dy is None else dy
    *found, dstart = torch.ops.maclaurin.gated_scan_backward(*inputs, h, dy, dend)
    return *found, None if inputs[3] is None else dstart


def _flops(u: Any, *_: Any, **__: Any) -> int:
    return int(5 * u[0] * u[1] * u[2])


def _backward_flops(u: Any, *_: Any, **__: Any) -> int:
    return int(16 * u[0] * u[1] * u[2])


@operator(
    f"gated_scan({INPUTS}) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def gated_scan(u: Tensor, gates: Tensor, g: Tensor, start: Tensor | None) -> tuple[Tensor, ...]:
    """y and h (B,T,C), and the last h (B,C). A gradient of h itself is not taken."""
    u, gates, g = rows(u), rows(gates), rows(g)
    start = None if start is None else start.contiguous()
    y, h = buffers_like(u, u)
    call = _call(u, gates, g, h)
    call.y, call.start = Strided.of(y), pointer(start)
    run("gated_forward", call)
    return y, h, h[:, -1].clone()


@operator(
    f"gated_scan_backward({INPUTS}, Tensor h, Tensor dy, Tensor? dend) -> (Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def gated_scan_backward(
    u: Tensor, gates: Tensor, g: Tensor, start: Tensor | None, h: Tensor, dy: Tensor, dend: Tensor | None
) -> tuple[Tensor, ...]:
    """The gradients of u, gates, g and start, which is zero where it is absent."""
    u, gates, g, h, dy = rows(u), rows(gates), rows(g), rows(h), rows(dy)
    start = None if start is None else start.contiguous()
    du, dgates, dg = buffers_like(u, gates, g)
    dstart = buffer(u.shape[0], u.shape[2])
    if dend is None:
        dstart.zero_()
    else:
        dstart.copy_(dend)
    call = _call(u, gates, g, h)
    call.dy, call.du, call.dgates, call.dg = (Strided.of(x) for x in (dy, du, dgates, dg))
    call.start, call.dstart = pointer(start), pointer(dstart)
    run("gated_backward", call)
    return du, dgates, dg, dstart


def _call(u: Tensor, gates: Tensor, g: Tensor, h: Tensor) -> Gated:
    given = {name: Strided.of(x) for name, x in {"u": u, "gates": gates, "g": g, "h": h}.items()}
    return Gated(*u.shape, **given)
