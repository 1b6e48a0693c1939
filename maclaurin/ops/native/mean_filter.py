"""InLine's causal filter as a torch operator: forward, backward, shapes for the compiler, flops."""

# B batch, T time, H heads, I inputs, C hidden numbers and V values per head, W taps, E = W·V

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import MeanFilter, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {
        "x": "BTHI",
        "v": "BTHV",
        "first": "HIC",
        "first_bias": "HC",
        "second": "HCE",
        "second_bias": "HE",
        "dy": "BTHV",
        "dsum": "BHI",
    },
    rules={"whole taps": lambda size: size["V"] > 0 and size["E"] % size["V"] == 0},
)
INPUTS = "Tensor x, Tensor v, Tensor first, Tensor first_bias, Tensor second, Tensor second_bias"


def _fake(x: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), x.new_empty(x.shape[0], *x.shape[2:])


def _backward_fake(dy: Tensor, dsum: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Tensor, ...]:
    inputs = ctx.saved_tensors
    dy = torch.zeros_like(inputs[1]) if dy is None else dy
    found: tuple[Tensor, ...] = torch.ops.maclaurin.mean_filter_backward(dy, dsum, *inputs)
    return found


def _products(x: Any, first: Any, second: Any) -> int:
    return int(x[0] * x[1] * x[2] * first[2] * (x[3] + second[2]))


def _flops(x: Any, v: Any, first: Any, first_bias: Any, second: Any, *_: Any, **__: Any) -> int:
    return 2 * _products(x, first, second)


def _backward_flops(dy: Any, dsum: Any, x: Any, v: Any, first: Any, first_bias: Any, second: Any, *_: Any, **__: Any) -> int:
    return 6 * _products(x, first, second)


@operator(
    f"mean_filter({INPUTS}) -> (Tensor, Tensor)",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def mean_filter(x: Tensor, v: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """y (B,T,H,V), and the sum (B,H,I) of all x. Weights have the inputs first, and taps one behind the other."""
    x, v, weights = rows(x), rows(v), tuple(weight.contiguous() for weight in weights)
    y, total = buffer(*v.shape), buffer(x.shape[0], *x.shape[2:])
    run("mean_filter_forward", _call(x, v, weights, y=Strided.of(y), sum=pointer(total)))
    return y, total


@operator(
    f"mean_filter_backward(Tensor dy, Tensor? dsum, {INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def mean_filter_backward(dy: Tensor, dsum: Tensor | None, x: Tensor, v: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    dy, x, v, weights = rows(dy), rows(x), rows(v), tuple(weight.contiguous() for weight in weights)
    dsum = None if dsum is None else dsum.contiguous()
    dx, dv = buffers_like(x, v)
    found = [buffer(x.shape[0], *weight.shape) for weight in weights]
    strided = {name: Strided.of(z) for name, z in {"dy": dy, "dx": dx, "dv": dv}.items()}
    names = ("dfirst", "dfirst_bias", "dsecond", "dsecond_bias")
    pointers = {name: pointer(z) for name, z in zip(names, found, strict=True)}
    run("mean_filter_backward", _call(x, v, weights, **strided, **pointers, dsum=pointer(dsum)))
    return dx, dv, *(parts.sum(0) for parts in found)


def _call(x: Tensor, v: Tensor, weights: tuple[Tensor, ...], **fields: Any) -> MeanFilter:
    first, _, second, _ = weights
    names = ("first", "first_bias", "second", "second_bias")
    inputs = {name: pointer(weight) for name, weight in zip(names, weights, strict=True)}
    sizes = (*x.shape, first.shape[2], v.shape[3], second.shape[2] // v.shape[3])
    return MeanFilter(*sizes, x=Strided.of(x), v=Strided.of(v), **inputs, **fields)
