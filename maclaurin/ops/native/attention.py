"""Attention with squared or exponential scores as torch operators: forward, backward, shapes for the compiler, flops.

`quadratic` meets every key directly; `chunked` (squared scores) goes through a memory, in linear time. Both take float32
tensors (B,T,H,K) of queries and (B,S,G,·) of keys and values, of which the queries are the last T, with any strides.
Besides y they return the divisor of every row, which is for the backward alone.
"""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels,
# F = K(K+1)/2 monomials, W = V or V+1 columns of a memory

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from maclaurin.ops.native.library import Attention, Strided, run

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay"
GRADIENTS = "(Tensor, Tensor, Tensor, Tensor)"


def _call(
    q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool, tensors: dict[str, Tensor | None], **options: Any
) -> Attention:
    """The struct that the kernels take. It points into the tensors, which the caller keeps alive."""
    B, T, H, K = q.shape
    sizes = {"B": B, "T": T, "S": k.shape[1], "H": H, "G": k.shape[2], "K": K, "V": v.shape[3]}
    call = Attention(**sizes, scale=scale, normalize=normalize, **options)
    for name, tensor in {"q": q, "k": k, "v": v, **tensors}.items():
        setattr(call, name, Strided.of(tensor))
    return call


def _rows(x: Tensor) -> Tensor:
    """Channels next to each other; any other strides are fine."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _gradients(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> dict[str, Tensor]:
    """Dense tensors for the gradients; where there is no decay its gradient is empty."""
    tensors = {"dq": q, "dk": k, "dv": v, "dlog_decay": q.new_empty(0) if log_decay is None else log_decay}
    return {name: torch.empty(x.shape) for name, x in tensors.items()}


def _empty_like(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """What the fake kernels return: dense tensors, and an empty one for each that is absent."""
    like = next(x for x in tensors if x is not None)
    return tuple(like.new_empty(0 if x is None else x.shape) for x in tensors)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


@torch.library.custom_op(
    "maclaurin::quadratic",
    mutates_args=(),
    schema=f"({INPUTS}, float scale, bool exponential, bool normalize) -> (Tensor, Tensor)",
)
def quadratic(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, exponential: bool, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Every query against every earlier key: y (B,T,H,V), and the divisor of every row (B,T,H)."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    y, total = torch.empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    tensors = {"log_decay": log_decay, "y": y, "total": total}
    run("quadratic_forward", _call(q, k, v, scale, normalize, tensors, exponential=exponential))
    return y, total


@torch.library.custom_op(
    "maclaurin::quadratic_backward",
    mutates_args=(),
    schema=f"(Tensor dy, {INPUTS}, Tensor y, Tensor total, float scale, bool exponential, bool normalize) -> {GRADIENTS}",
)
def quadratic_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    y: Tensor,
    total: Tensor,
    scale: float,
    exponential: bool,
    normalize: bool,
) -> tuple[Tensor, ...]:
    dy, q, k, v = _rows(dy), _rows(q), _rows(k), _rows(v)
    found = _gradients(q, k, v, log_decay)
    tensors = {"log_decay": log_decay, "y": y, "total": total, "dy": dy}
    outputs = {name: x for name, x in found.items() if log_decay is not None or name != "dlog_decay"}
    run("quadratic_backward", _call(q, k, v, scale, normalize, {**tensors, **outputs}, exponential=exponential))
    return tuple(found.values())


@torch.library.custom_op(
    "maclaurin::chunked",
    mutates_args=(),
    schema=f"({INPUTS}, Tensor? memory, float scale, bool normalize, int chunk, int folded) -> (Tensor, Tensor, Tensor)",
)
def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    memory: Tensor | None,
    scale: float,
    normalize: bool,
    chunk: int,
    folded: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared scores through the memory (B,G,F,W) of what came before; also the memory after `folded` keys, empty for 0."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    memory = None if memory is None else memory.contiguous()
    y, total = torch.empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    new_memory = torch.empty(_memory_shape(k, v, normalize, folded))
    call = _call(q, k, v, scale, normalize, {"log_decay": log_decay, "y": y, "total": total}, chunk=chunk, folded=folded)
    call.memory, call.new_memory = _pointer(memory), _pointer(new_memory)
    run("chunked_forward", call)
    return y, total, new_memory


@torch.library.custom_op(
    "maclaurin::chunked_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor? dnew_memory, {INPUTS}, Tensor? memory, Tensor y, Tensor total, Tensor new_memory, "
    "float scale, bool normalize, int chunk, int folded) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def chunked_backward(
    dy: Tensor,
    dnew_memory: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    memory: Tensor | None,
    y: Tensor,
    total: Tensor,
    new_memory: Tensor,
    scale: float,
    normalize: bool,
    chunk: int,
    folded: int,
) -> tuple[Tensor, ...]:
    dy, q, k, v = _rows(dy), _rows(q), _rows(k), _rows(v)
    memory = None if memory is None else memory.contiguous()
    dnew_memory = None if dnew_memory is None else dnew_memory.contiguous()
    found = _gradients(q, k, v, log_decay)
    found["dmemory"] = torch.empty(0 if memory is None else memory.shape)
    tensors = {"log_decay": log_decay, "y": y, "total": total, "dy": dy}
    outputs = {name: found[name] for name in ("dq", "dk", "dv", *(("dlog_decay",) if log_decay is not None else ()))}
    call = _call(q, k, v, scale, normalize, {**tensors, **outputs}, chunk=chunk, folded=folded)
    call.memory, call.dmemory = _pointer(memory), _pointer(found["dmemory"])
    call.new_memory, call.dnew_memory = _pointer(new_memory), _pointer(dnew_memory)
    run("chunked_backward", call)
    return tuple(found.values())


def _memory_shape(k: Tensor, v: Tensor, normalize: bool, folded: int) -> tuple[int, ...]:
    B, _, G, K = k.shape
    return (B, G, K * (K + 1) // 2, v.shape[3] + normalize) if folded else (0,)


@quadratic.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@quadratic_backward.register_fake
def _(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    return _empty_like(q, k, v, log_decay)


@chunked.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, memory: Tensor | None, scale: float, normalize: bool, *last: int
) -> tuple[Tensor, ...]:
    y, total = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    _, folded = last
    return y, total, q.new_empty(_memory_shape(k, v, normalize, folded))


@chunked_backward.register_fake
def _(
    dy: Tensor, dnew: Tensor | None, q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, memory: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return _empty_like(q, k, v, a, memory)


def _keep_quadratic(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale, exponential, normalize = inputs
    ctx.options = (scale, exponential, normalize)
    ctx.save_for_backward(*tensors, *output)


def _quadratic_gradients(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing unpacks them only once
    dq, dk, dv, dlog_decay = torch.ops.maclaurin.quadratic_backward(dy, *saved, *ctx.options)
    return dq, dk, dv, None if saved[3] is None else dlog_decay, None, None, None


def _keep_chunked(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, scale, normalize, chunk, folded = inputs
    ctx.options = (scale, normalize, chunk, folded)
    ctx.save_for_backward(*tensors, *output)


def _chunked_gradients(ctx: Any, dy: Tensor, dtotal: Tensor, dnew_memory: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    log_decay, memory = saved[3:5]
    dnew = dnew_memory if ctx.options[-1] else None
    dq, dk, dv, dlog_decay, dmemory = torch.ops.maclaurin.chunked_backward(dy, dnew, *saved, *ctx.options)
    return dq, dk, dv, None if log_decay is None else dlog_decay, None if memory is None else dmemory, None, None, None, None


quadratic.register_autograd(_quadratic_gradients, setup_context=_keep_quadratic)
chunked.register_autograd(_chunked_gradients, setup_context=_keep_chunked)


def _pair_products(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], keys_met: float) -> int:
    """Multiply-adds of scores and of weighted values."""
    B, T, H, K = q
    return int(B * H * T * keys_met * (K + v[3]))


def _memory_products(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> tuple[int, int]:
    """Multiply-adds of all reads and of all writes of the memory."""
    features = q[3] * (q[3] + 1) // 2 * (v[3] + 1)
    return q[0] * q[1] * q[2] * features, k[0] * k[1] * k[2] * features


@register_flop_formula(torch.ops.maclaurin.quadratic)
def _(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return 2 * _pair_products(q, k, v, k[1] - q[1] / 2)


@register_flop_formula(torch.ops.maclaurin.quadratic_backward)
def _(dy: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return 5 * _pair_products(q, k, v, k[1] - q[1] / 2)


@register_flop_formula(torch.ops.maclaurin.chunked)
def _(q: Any, k: Any, v: Any, a: Any, m: Any, scale: Any, normalize: Any, chunk: int, folded: int, **_: Any) -> int:
    reads, writes = _memory_products(q, k, v)
    if q[1] == 1 and m is not None:
        return 2 * (reads + (writes if folded else 0) + _pair_products(q, k, v, k[1]))
    return 2 * (reads + writes + _pair_products(q, k, v, chunk / 2))


@register_flop_formula(torch.ops.maclaurin.chunked_backward)
def _(dy: Any, dnew: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    reads, writes = _memory_products(q, k, v)
    return 2 * (2 * reads + 3 * writes)
