"""The delta rule as a torch operator: forward, backward, shapes for the compiler, flops.

Decays are absent, one per head (B,T,G), or one per channel (B,T,G,K) for order 1. A state (B,G,F,V) goes in and comes out.
The forward returns the errors as well, values less what the state held for their keys: the backward rebuilds states from
them.
"""

# B batch, T time, H heads, G key-value heads, K, V channels, F = K or K(K+1)/2 features

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Delta, Strided, buffer, buffers_like, pointer, rows, run
from maclaurin.ops.native.nan import run_looking
from maclaurin.ops.native.operators import operator

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? log_decay, Tensor? state"
OPTIONS = "float scale, int order, int chunk, bool keep"
TENSORS = 6  # inputs that have a gradient
BLOCK = {3: 32, 4: 16}  # tokens that the kernels take at a time, by the dimensions of log_decay
LONGEST_BLOCK = max(BLOCK.values())


def feature_count(K: int, order: int) -> int:
    return K if order == 1 else K * (K + 1) // 2


SHAPES = Shapes(
    {
        "q": "BTHK",
        "k": "BTGK",
        "v": "BTGV",
        "beta": "BTG",
        "log_decay": lambda size: "BTG|BTGK" if size["order"] == 1 else "BTG",
        "state": "BGFV",
        "y": "BTHV",
        "error": "BTGV",
        "dy": "BTHV",
        "new_state": lambda size: "BGFV" if size["keep"] else "0",
        "dnew_state": "BGFV",
    },
    derived={"F": lambda size: feature_count(size["K"], size["order"])},
    rules={
        "the heads of k to divide those of q": lambda size: 0 < size["G"] <= size["H"] and size["H"] % size["G"] == 0,
        "a chunk of at least 1": lambda size: size["chunk"] >= 1,
        "order 1 or 2": lambda size: size["order"] in (1, 2),
    },
)


def _call(tensors: tuple[Tensor | None, ...], options: tuple[Any, ...], **others: Tensor) -> Delta:
    """The struct that the kernels take. It points into the tensors, which the caller keeps alive."""
    names = ("q", "k", "v", "beta", "log_decay")
    given = {name: x for name, x in zip(names, tensors, strict=False) if x is not None} | others
    (B, T, H, K), (G, V) = given["q"].shape, given["v"].shape[2:]
    scale, order, chunk, _ = options
    per_channel = "log_decay" in given and given["log_decay"].dim() == 4
    strided = {name: Strided.of(x) for name, x in given.items()}
    return Delta(B, T, H, G, K, V, **strided, scale=scale, order=order, chunk=chunk, per_channel=per_channel)


def _shapes(q: Tensor, v: Tensor, order: int, keep: bool) -> tuple[tuple[int, ...], ...]:
    """Of y, of the errors and of the new state, which is empty if not asked for."""
    (B, T, H, K), (G, V) = q.shape, v.shape[2:]
    return (B, T, H, V), (B, T, G, V), (B, G, feature_count(K, order), V) if keep else (0,)


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    order, keep = rest[-3], rest[-1]
    return tuple(torch.empty(shape, dtype=q.dtype, device=q.device) for shape in _shapes(q, v, order, keep))


def _backward_fake(dy: Tensor, dnew_state: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(0 if x is None else x.shape, dtype=dy.dtype, device=dy.device) for x in rest[:TENSORS])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[TENSORS:]
    ctx.save_for_backward(*inputs[:TENSORS], *output[1:])


def _gradients(ctx: Any, dy: Tensor, derror: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
    found = torch.ops.maclaurin.delta_backward(dy, dnew_state if ctx.options[-1] else None, *saved, *ctx.options)
    return *(None if x is None else gradient for x, gradient in zip(saved, found, strict=False)), *(None,) * len(ctx.options)


def _products(q: Any, k: Any, v: Any, log_decay: Any, order: int) -> tuple[int, int]:
    """Multiply-adds with the state, and between the tokens of a block."""
    (B, T, H, K), (G, V) = q, v[2:]
    block = BLOCK[3 if log_decay is None else len(log_decay)]
    return B * T * feature_count(K, order) * V * (H + 2 * G), B * T * (H + G) * (K + V) * block // 2


def _flops(q: Any, k: Any, v: Any, beta: Any, log_decay: Any, *rest: Any, **_: Any) -> int:
    return 2 * sum(_products(q, k, v, log_decay, rest[2]))


def _backward_flops(
    dy: Any, dnew_state: Any, q: Any, k: Any, v: Any, beta: Any, log_decay: Any, *rest: Any, **_: Any
) -> int:
    state, pairs = _products(q, k, v, log_decay, rest[4])
    return 5 * state + 6 * pairs


@operator(
    f"delta({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def delta(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """y (B,T,H,V), the errors (B,T,G,V), and the state after the last token if `keep`."""
    beta, log_decay, state, *options = rest
    tensors = tuple(None if x is None else rows(x) for x in (q, k, v, beta, log_decay))
    state = None if state is None else state.contiguous()
    y, error, new_state = (buffer(*shape) for shape in _shapes(q, v, options[1], options[3]))
    call = _call(tensors, tuple(options), y=y, error=error)
    call.state, call.new_state = pointer(state), pointer(new_state)
    run_looking("delta_forward", call, y)
    return y, error, new_state


@operator(
    f"delta_backward(Tensor dy, Tensor? dnew_state, {INPUTS}, Tensor error, Tensor new_state, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def delta_backward(dy: Tensor, dnew_state: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, beta, log_decay and state; those of absent ones are empty."""
    *tensors, state = (None if x is None else rows(x) for x in rest[:TENSORS])
    error, new_state, *options = rest[TENSORS:]
    dy, error, new_state = rows(dy), rows(error), new_state.contiguous()
    state, dnew_state = (None if x is None else x.contiguous() for x in (state, dnew_state))
    found = buffers_like(*tensors, state)
    names = ("dq", "dk", "dv", "dbeta", "dlog_decay")
    gradients = {name: x for name, x, given in zip(names, found, tensors, strict=False) if given is not None}
    call = _call(tuple(tensors), tuple(options), error=error, dy=dy, **gradients)
    call.state, call.new_state = pointer(state), pointer(new_state)
    call.dstate, call.dnew_state = pointer(found[-1]), pointer(dnew_state)
    run("delta_backward", call)
    return found
