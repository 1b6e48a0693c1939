"""Piecewise linear functions of one number as a torch operator: forward, backward, shapes for the compiler, flops."""

# n numbers, P knots, padded with infinity to a multiple of 16, R = P + 1 rows of the table, L functions, D = 2L

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Piecewise, buffer, run
from maclaurin.ops.native.operators import operator

SEARCHED = 16  # knots that are compared with a number at once
PART = 2**16  # numbers that share one table of gradients
SHAPES = Shapes(
    {"u": "n", "knots": "P", "table": "RD", "dy": "nL"},
    derived={"R": lambda size: size["P"] + 1},
    rules={
        "a multiple of 16 knots": lambda size: size["P"] % SEARCHED == 0,
        "two numbers per function and row": lambda size: size["D"] == 2 * size.get("L", size["D"] // 2),
    },
)
INPUTS = "Tensor u, Tensor knots, Tensor table, bool relu"


def _fake(u: Tensor, knots: Tensor, table: Tensor, relu: bool) -> Tensor:
    return u.new_empty(u.shape[0], table.shape[1] // 2)


def _backward_fake(dy: Tensor, u: Tensor, knots: Tensor, table: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(table)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.relu = inputs[3]


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    du, dtable = torch.ops.maclaurin.piecewise_backward(dy, *ctx.saved_tensors, ctx.relu)
    return du, None, dtable, None


def _flops(u: Any, knots: Any, table: Any, *_: Any, **__: Any) -> int:
    return int(u[0] * table[1])


def _backward_flops(dy: Any, u: Any, knots: Any, table: Any, *_: Any, **__: Any) -> int:
    return int(3 * u[0] * table[1])


@operator(f"piecewise({INPUTS}) -> Tensor", shapes=SHAPES, fake=_fake, flops=_flops, save=_save, backward=_gradients)
def piecewise(u: Tensor, knots: Tensor, table: Tensor, relu: bool) -> Tensor:
    """y (n, L) of u (n,). table (R, 2L): slopes, then intercepts, of the row that says how many knots lie below a number."""
    u, knots, table = u.contiguous(), knots.contiguous(), table.contiguous()
    y = buffer(u.shape[0], table.shape[1] // 2)
    run("piecewise_forward", _call(u, knots, table, relu, y=y.data_ptr()))
    return y


@operator(
    f"piecewise_backward(Tensor dy, {INPUTS}) -> (Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def piecewise_backward(dy: Tensor, u: Tensor, knots: Tensor, table: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    dy, u, knots, table = dy.contiguous(), u.contiguous(), knots.contiguous(), table.contiguous()
    parts = max(1, -(-u.shape[0] // PART))
    du, dtable = buffer(*u.shape), buffer(parts, *table.shape)
    gradients = {"dy": dy.data_ptr(), "du": du.data_ptr(), "dtable": dtable.data_ptr(), "parts": parts}
    run("piecewise_backward", _call(u, knots, table, relu, **gradients))
    return du, dtable.sum(0)


def _call(u: Tensor, knots: Tensor, table: Tensor, relu: bool, **fields: int) -> Piecewise:
    inputs = {"u": u.data_ptr(), "knot": knots.data_ptr(), "table": table.data_ptr()}
    return Piecewise(u.shape[0], knots.shape[0], table.shape[1] // 2, **inputs, relu=relu, **fields)
