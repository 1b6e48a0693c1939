"""Pairs of channels turned by angles as a torch operator; its gradient is the same by the opposite angles."""

# B batch, T time, H heads, P pairs, K = 2P channels

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Strided, Turn, buffer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {"x": "BTHK", "cos": "BTHP", "sin": "BTHP"},
    rules={"two channels for each pair": lambda size: size["K"] == 2 * size["P"]},
)


def _fake(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    """The channels 2p and 2p + 1, or p and p + P."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, *ctx.options = inputs
    ctx.save_for_backward(cos, sin, x if any(ctx.needs_input_grad[1:3]) else None)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin, x = ctx.saved_tensors
    interleaved, back = ctx.options
    dx = torch.ops.maclaurin.turn(dy, cos, sin, interleaved, not back)
    if x is None:
        return dx, None, None, None, None
    (a, b), (da, db) = pairs(x, interleaved), pairs(dy, interleaved)
    dsin = a * db - b * da
    return dx, a * da + b * db, -dsin if back else dsin, None, None


def _flops(x: Any, *_: Any, **__: Any) -> int:
    return int(3 * x[0] * x[1] * x[2] * x[3])


@operator(
    "turn(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool back) -> Tensor",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool) -> Tensor:
    """x (B,T,H,2P) by angles (B,T,H,P), whose rows may be one; back: by the opposite ones. Pairs as in `ops.rotary`."""
    y = buffer(*x.shape)
    _run(x, cos, sin, y, interleaved, back)
    return y


def _together_fake(dq: Tensor, dk: Tensor, dv: Tensor, *_: Any) -> Tensor:
    B, T = dq.shape[:2]
    return dq.new_empty(B, T, _channels(dq.shape, dk.shape, dv.shape))


def _together_flops(dq: Any, dk: Any, *_: Any, **__: Any) -> int:
    return int(_flops(dq) + _flops(dk))


def _channels(*shapes: Any) -> int:
    return sum(heads * channels for _, _, heads, channels in shapes)


@operator(
    "turned_back(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin, bool interleaved) -> Tensor",
    shapes=Shapes(
        {"dq": "BTHK", "dk": "BTGK", "dv": "BTFV", "cos": "BT1P", "sin": "BT1P"},
        derived={"1": lambda size: 1},
        rules=SHAPES.rules,
    ),
    fake=_together_fake,
    flops=_together_flops,
)
def turned_back(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Side by side (B,T,HK+GK+FV): the gradients of q and k before they were turned by angles (B,T,1,P), and that of v."""
    sizes = [x.shape[2] * x.shape[3] for x in (dq, dk, dv)]
    together = buffer(*dq.shape[:2], sum(sizes))
    to_q, to_k, to_v = (
        part.unflatten(-1, x.shape[2:]) for part, x in zip(together.split(sizes, -1), (dq, dk, dv), strict=True)
    )
    for x, y in ((dq, to_q), (dk, to_k)):
        of_heads = (-1, -1, x.shape[2], -1)
        _run(x, cos.expand(of_heads), sin.expand(of_heads), y, interleaved, True)
    to_v.copy_(dv)
    return together


def _run(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor, interleaved: bool, back: bool) -> None:
    x, cos, sin = rows(x), rows(cos), rows(sin)
    B, T, H, P = cos.shape
    tensors = {name: Strided.of(z) for name, z in {"x": x, "cos": cos, "sin": sin, "y": y}.items()}
    run("turn_forward", Turn(B, T, H, P, **tensors, interleaved=interleaved, back=back))
