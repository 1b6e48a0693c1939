"""InLine attention without a state before it as a torch operator: first-order attention whose weights are centred."""

# B batch, T time, H heads, G key-value heads, K, V channels, W = V + 1 columns of a state

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native import linear
from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Linear, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.nan import run_looking
from maclaurin.ops.native.operators import operator

TENSORS = {name: shape for name, shape in linear.SHAPES.tensors.items() if name not in ("log_decay", "state")}
SHAPES = Shapes(
    TENSORS | {"total": "BTH"},
    derived={"W": lambda size: size["V"] + 1},
    rules=linear.SHAPES.rules,
)
INPUTS, OPTIONS = "Tensor q, Tensor k, Tensor v", "float scale, int chunk, bool keep"


def _fake(q: Tensor, k: Tensor, v: Tensor, scale: float, chunk: int, keep: bool) -> tuple[Tensor, ...]:
    shapes = linear._shapes(q, k, v, True, keep)
    return tuple(torch.empty(shape, dtype=q.dtype, device=q.device) for shape in shapes)


def _backward_fake(dy: Tensor, dnew_state: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in rest[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[3:]
    ctx.save_for_backward(*inputs[:3], *output)


def _gradients(ctx: Any, dy: Tensor, dtotal: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    dnew = dnew_state if ctx.options[2] else None
    found = torch.ops.maclaurin.inline_backward(dy, dnew, *ctx.saved_tensors, *ctx.options)
    return *found, *(None,) * 3


def _flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return linear._flops(q, k, v, None)


def _backward_flops(dy: Any, dnew_state: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return linear._backward_flops(dy, dnew_state, q, k, v, None)


def _call(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], **tensors: Tensor) -> Linear:
    scale, chunk, keep = options
    call = linear.linear_call(q, k, v, None, (scale, 1.0, True, chunk, keep), **tensors)
    call.centred = True
    return call


@operator(
    f"inline({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def inline(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, ...]:
    """y (B,T,H,V), the sum of every query's products (B,T,H), and Σ k [v, 1]ᵀ (B,G,K,V+1) if `keep`."""
    q, k, v = rows(q), rows(k), rows(v)
    y, total, new_state = (buffer(*shape) for shape in linear._shapes(q, k, v, True, options[2]))
    call = _call(q, k, v, options, y=y, total=total)
    call.new_state = pointer(new_state)
    run_looking("linear_forward", call, y)
    return y, total, new_state


@operator(
    f"inline_backward(Tensor dy, Tensor? dnew_state, {INPUTS}, Tensor y, Tensor total, Tensor new_state, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def inline_backward(
    dy: Tensor, dnew_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *saved: Any
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v."""
    y, total, new_state, *options = saved
    dy, q, k, v, y = rows(dy), rows(q), rows(k), rows(v), rows(y)
    dnew_state = None if dnew_state is None else dnew_state.contiguous()
    new_state = new_state.contiguous()
    dq, dk, dv = buffers_like(q, k, v)
    between_walks = {"total": total, "dtotal": buffer(*total.shape)}
    call = _call(q, k, v, tuple(options), y=y, dy=dy, dq=dq, dk=dk, dv=dv, **between_walks)
    call.new_state, call.dnew_state = pointer(new_state), pointer(dnew_state)
    run("linear_backward", call)
    return dq, dk, dv
