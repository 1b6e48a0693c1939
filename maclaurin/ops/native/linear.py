"""First-order attention as a torch operator: forward, backward, shapes for the compiler, flops.

Decays are absent, one per head (B,T,G), or one per channel (B,T,G,K). A state (B,G,K,W) goes in and comes out; it holds
k_scale·k. The kernels have a block size of their own, which `chunk` can make smaller.
"""

# B batch, T time, H heads, G key-value heads, K, V channels, W = V or V+1 columns of a state

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Linear, Strided, buffer, buffers_like, pointer, rows, run, state_in
from maclaurin.ops.native.nan import run_looking
from maclaurin.ops.native.operators import operator

SHAPES = Shapes(
    {
        "q": "BTHK",
        "k": "BTGK",
        "v": "BTGV",
        "log_decay": "BTG|BTGK",
        "state": "BGKW",
        "y": "BTHV",
        "dy": "BTHV",
        "total": lambda size: "BTH" if size["normalize"] else "0",
        "new_state": lambda size: "BGKW" if size["keep"] else "0",
        "dnew_state": "BGKW",
    },
    derived={"W": lambda size: size["V"] + size["normalize"]},
    rules={
        "the heads of k to divide those of q": lambda size: 0 < size["G"] <= size["H"] and size["H"] % size["G"] == 0,
        "a chunk of at least 1": lambda size: size["chunk"] >= 1,
    },
)
INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? state"
OPTIONS = "float q_scale, float k_scale, bool normalize, int chunk, bool keep"
BLOCK = {3: 32, 4: 16}  # tokens that the kernels take at a time, by the dimensions of log_decay
LONGEST_BLOCK = max(BLOCK.values())


def linear_call(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, options: tuple[Any, ...], **tensors: Tensor
) -> Linear:
    """The struct that the kernels take. It points into the tensors, which the caller keeps alive."""
    B, T, H, K = q.shape
    q_scale, k_scale, normalize, chunk, _ = options
    sizes = (B, T, H, k.shape[2], K, v.shape[3])
    given = {"q": q, "k": k, "v": v, **tensors}
    strided = {name: Strided.of(tensor) for name, tensor in given.items()}
    if log_decay is not None:
        strided["log_decay"] = Strided.of(log_decay)
    per_channel = log_decay is not None and log_decay.dim() == 4
    scales = {"q_scale": q_scale, "k_scale": k_scale}
    return Linear(*sizes, **strided, chunk=chunk, **scales, per_channel=per_channel, normalize=normalize)


def _shapes(q: Tensor, k: Tensor, v: Tensor, normalize: bool, keep: bool) -> tuple[tuple[int, ...], ...]:
    """Of y, of the divisors and of the new state; what is not asked for is empty."""
    B, T, H, K = q.shape
    V = v.shape[3]
    return (B, T, H, V), (B, T, H) if normalize else (0,), (B, k.shape[2], K, V + int(normalize)) if keep else (0,)


def _fake(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None, *options: Any
) -> tuple[Tensor, ...]:
    return tuple(torch.empty(shape, dtype=q.dtype, device=q.device) for shape in _shapes(q, k, v, options[2], options[4]))


def _backward_fake(dy: Tensor, dnew_state: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(0 if x is None else x.shape, dtype=dy.dtype, device=dy.device) for x in rest[:5])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[5:]
    ctx.save_for_backward(*inputs[:5], *output)


def _gradients(ctx: Any, dy: Tensor, dtotal: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
    dnew = dnew_state if ctx.options[4] else None
    found = torch.ops.maclaurin.linear_backward(dy, dnew, *saved, *ctx.options)
    return *(None if x is None else gradient for x, gradient in zip(saved[:5], found, strict=True)), *(None,) * 5


def _products(q: Any, k: Any, v: Any, log_decay: Any) -> tuple[int, int]:
    """Multiply-adds with the state, and between the tokens of a block."""
    B, T, H, K = q
    block = BLOCK[3 if log_decay is None else len(log_decay)]
    return B * T * K * v[3] * (H + k[2]), B * T * H * (K + v[3]) * block // 2


def _flops(q: Any, k: Any, v: Any, log_decay: Any, *_: Any, **__: Any) -> int:
    return 2 * sum(_products(q, k, v, log_decay))


def _backward_flops(dy: Any, dnew_state: Any, q: Any, k: Any, v: Any, log_decay: Any, *_: Any, **__: Any) -> int:
    state, pairs = _products(q, k, v, log_decay)
    return 5 * state + 6 * pairs


@operator(
    f"linear({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_fake,
    flops=_flops,
    save=_keep,
    backward=_gradients,
)
def linear(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None, *options: Any
) -> tuple[Tensor, ...]:
    """y (B,T,H,V), the divisor of every output (B,T,H), and the state after the last token if `keep`."""
    q, k, v = rows(q), rows(k), rows(v)
    log_decay = None if log_decay is None else rows(log_decay)
    y, total, new_state = (buffer(*shape) for shape in _shapes(q, k, v, options[2], options[4]))
    call = linear_call(q, k, v, log_decay, options, y=y)
    if options[2]:
        call.total = Strided.of(total)
    state = state_in(call, state)
    call.new_state = pointer(new_state)
    run_looking("linear_forward", call, y)
    return y, total, new_state


@operator(
    f"linear_backward(Tensor dy, Tensor? dnew_state, {INPUTS}, Tensor y, Tensor total, Tensor new_state, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_backward_fake,
    flops=_backward_flops,
)
def linear_backward(
    dy: Tensor, dnew_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *saved: Any
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, log_decay and state; those of absent ones are empty."""
    log_decay, state, y, total, new_state, *options = saved
    dy, q, k, v, y = rows(dy), rows(q), rows(k), rows(v), rows(y)
    log_decay = None if log_decay is None else rows(log_decay)
    dnew_state = None if dnew_state is None else dnew_state.contiguous()
    new_state = new_state.contiguous()
    found = buffers_like(q, k, v, log_decay, state)
    call = linear_call(q, k, v, log_decay, tuple(options), y=y, dy=dy, dq=found[0], dk=found[1], dv=found[2])
    if options[2]:
        call.total = Strided.of(total)
    if log_decay is not None:
        call.dlog_decay = Strided.of(found[3])
    state, call.new_state = state_in(call, state), pointer(new_state)
    call.dstate, call.dnew_state = pointer(found[4]), pointer(dnew_state)
    run("linear_backward", call)
    return found
