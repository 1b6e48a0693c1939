"""Attention with squared or exponential scores as torch operators.

`quadratic` meets every key directly; `chunked` (squared scores) goes through a state, in linear time, and `whole` does so
for every query and every key. All take float32 tensors (B,T,H,K) of queries and (B,S,G,·) of keys and values, of which the
queries are the last T, with any strides.
Besides y they return the divisor of every output, which is for the backward alone.
"""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels,
# F = K(K+1)/2 monomials, W = V or V+1 columns of a state

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import gpu
from maclaurin.ops.crossover import longest_direct
from maclaurin.ops.native.layouts import Shapes
from maclaurin.ops.native.library import Attention, Strided, buffer, pointer, rows, run, state_in
from maclaurin.ops.native.nan import run_looking
from maclaurin.ops.native.operators import operator

LONGEST_CHUNK = 128  # of csrc/chunks.h
BACK, FORTH, ALL = 1, 2, 3  # MaclaurinWay
SHAPES = Shapes(
    {
        "q": "BTHK",
        "k": "BSGK",
        "v": "BSGV",
        "log_decay": "BSG",
        "state": "BGFW",
        "y": "BTHV",
        "dy": "BTHV",
        "total": "BTH",
        "new_state": lambda size: "BGFW" if size["folded"] else "0",
        "dnew_state": "BGFW",
    },
    derived={"F": lambda size: size["K"] * (size["K"] + 1) // 2, "W": lambda size: size["V"] + size["normalize"]},
    rules={
        "the heads of k to divide those of q": lambda size: 0 < size["G"] <= size["H"] and size["H"] % size["G"] == 0,
        "at least as many keys as queries": lambda size: size["T"] <= size["S"],
        "a chunk of at least 1": lambda size: size.get("chunk", 1) >= 1,
        "no more folded keys than there are": lambda size: 0 <= size.get("folded", 0) <= size["S"],
        "no window, which only the Triton kernels have": lambda size: not size.get("window"),
    },
)
WHOLE = replace(SHAPES, rules={**SHAPES.rules, "as many keys as queries": lambda size: size["T"] == size["S"]})
INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay"
Shape = tuple[int, ...]


def _call(
    q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool, tensors: dict[str, Tensor | None], **options: Any
) -> Attention:
    """The struct that the kernels take. It points into the tensors, which the caller keeps alive."""
    B, T, H, K = q.shape
    sizes = {"B": B, "T": T, "S": k.shape[1], "H": H, "G": k.shape[2], "K": K, "V": v.shape[3]}
    given = {"q": q, "k": k, "v": v, **tensors}
    backwards = options.get("way") == BACK
    strided = {name: Strided.of(tensor, backwards) for name, tensor in given.items() if tensor is not None}
    return Attention(**sizes, **strided, scale=scale, normalize=normalize, **options)


def _dense_like(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Dense tensors of the same shapes, and an empty one for each that is absent."""
    like = next(x for x in tensors if x is not None)
    return tuple(like.new_empty(0) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """y (B,T,H,V), and the divisor of every output (B,T,H)."""
    B, T, H, _ = q.shape
    return buffer(B, T, H, v.shape[3]), buffer(B, T, H)


def _fake_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    B, T, H, _ = q.shape
    return q.new_empty(B, T, H, v.shape[3]), q.new_empty(B, T, H, dtype=torch.float32)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Tensors, which come first, and options apart."""
    ctx.options = tuple(x for x in inputs if x is not None and not isinstance(x, Tensor))
    ctx.save_for_backward(*inputs[: len(inputs) - len(ctx.options)], *output)


def _gradients(
    kernel: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    given: dict[str, Tensor | None],
    scale: float,
    normalize: bool,
    **options: Any,
) -> tuple[Tensor, ...]:
    """dq, dk, dv and dlog_decay from q, k, v, and from log_decay, y, total and dy in `given`."""
    q, k, v = (rows(x) for x in inputs)
    dq, dk, dv, da = _dense_like(q, k, v, given["log_decay"])
    found = {"dq": dq, "dk": dk, "dv": dv} | ({} if given["log_decay"] is None else {"dlog_decay": da})
    run(kernel, _call(q, k, v, scale, normalize, {**given, **found}, **options))
    return dq, dk, dv, da


# --- every query against every earlier key, or (softmax on a GPU) against those of a window; 0 stands for none


def _quadratic_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _fake_outputs(q, v)


def _quadratic_gradients(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing unpacks them only once
    dq, dk, dv, dlog_decay = torch.ops.maclaurin.quadratic_backward(dy, *saved, *ctx.options)
    return dq, dk, dv, None if saved[3] is None else dlog_decay, None, None, None, None


def _quadratic_flops(q: Shape, k: Shape, v: Shape, *options: Any, **__: Any) -> int:
    return 2 * _pair_products(q, v, _keys_met(q, k, options[-1]))


def _quadratic_backward_fake(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    return _dense_like(q, k, v, a)


def _quadratic_backward_flops(dy: Shape, q: Shape, k: Shape, v: Shape, *options: Any, **__: Any) -> int:
    return 5 * _pair_products(q, v, _keys_met(q, k, options[-1]))


@operator(
    f"quadratic({INPUTS}, float scale, bool exponential, bool normalize, int window) -> (Tensor, Tensor)",
    shapes=SHAPES,
    fake=_quadratic_fake,
    flops=_quadratic_flops,
    save=save,
    backward=_quadratic_gradients,
    on_gpu=gpu.kernel("direct", "quadratic"),
)
def _quadratic(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    scale: float,
    exponential: bool,
    normalize: bool,
    window: int,
) -> tuple[Tensor, Tensor]:
    q, k, v = rows(q), rows(k), rows(v)
    y, total = _outputs(q, v)
    tensors = {"log_decay": log_decay, "y": y, "total": total}
    run_looking("quadratic_forward", _call(q, k, v, scale, normalize, tensors, exponential=exponential), y)
    return y, total


@operator(
    f"quadratic_backward(Tensor dy, {INPUTS}, Tensor y, Tensor total, float scale, bool exponential, bool normalize, "
    "int window) -> (Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_quadratic_backward_fake,
    flops=_quadratic_backward_flops,
    on_gpu=gpu.kernel("direct", "quadratic_backward"),
)
def _quadratic_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    log_decay, y, total, scale, exponential, normalize, _ = saved
    given = {"log_decay": log_decay, "y": rows(y), "total": total, "dy": rows(dy)}
    return _gradients("quadratic_backward", (q, k, v), given, scale, normalize, exponential=exponential)


# --- squared scores through the state (B,G,F,W) of what came before; also the state after `folded` keys, empty for 0


def _state_shape(k: Tensor, v: Tensor, normalize: bool, folded: int) -> Shape:
    B, _, G, K = k.shape
    return (B, G, K * (K + 1) // 2, v.shape[3] + int(normalize)) if folded else (0,)


def chunked_fake(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, state: Tensor | None, scale: float, normalize: bool, *last: int
) -> tuple[Tensor, ...]:
    _, folded = last
    return *_fake_outputs(q, v), q.new_empty(_state_shape(k, v, normalize, folded), dtype=torch.float32)


def _chunked_gradients(ctx: Any, dy: Tensor, dtotal: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    log_decay, state = saved[3:5]
    dnew = dnew_state if ctx.options[-1] else None
    dq, dk, dv, dlog_decay, dstate = torch.ops.maclaurin.chunked_backward(dy, dnew, *saved, *ctx.options)
    return dq, dk, dv, None if log_decay is None else dlog_decay, None if state is None else dstate, None, None, None, None


def chunked_flops(
    q: Shape, k: Shape, v: Shape, a: Any, m: Any, scale: Any, norm: Any, chunk: int, folded: int, **_: Any
) -> int:
    reads, writes = _state_products(q, k, v)
    if q[1] == 1 and m is not None:
        return 2 * (reads + (writes if folded else 0) + _pair_products(q, v, k[1]))
    return 2 * (reads + writes + _pair_products(q, v, min(chunk, LONGEST_CHUNK) / 2))


def chunked_backward_fake(
    dy: Tensor, dnew: Tensor | None, q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, state: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return _dense_like(q, k, v, a, state)


def chunked_backward_flops(dy: Shape, dnew: Any, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    reads, writes = _state_products(q, k, v)
    return 2 * (2 * reads + 3 * writes)


def attend(
    kernel: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    scale: float,
    normalize: bool,
    chunk: int,
    folded: int,
    **mechanism: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the divisors, and the state. mechanism: further fields of the call."""
    q, k, v = rows(q), rows(k), rows(v)
    y, total = _outputs(q, v)
    new_state = buffer(*_state_shape(k, v, normalize, folded))
    tensors = {"log_decay": log_decay, "y": y, "total": total}
    call = _call(q, k, v, scale, normalize, tensors, chunk=chunk, folded=folded, **mechanism)
    state = state_in(call, state)
    call.new_state = pointer(new_state)
    run_looking(kernel, call, y)
    return y, total, new_state


def attend_backward(
    kernel: str,
    dy: Tensor,
    dnew_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    y: Tensor,
    total: Tensor,
    new_state: Tensor,
    scale: float,
    normalize: bool,
    chunk: int,
    folded: int,
    **mechanism: int,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, log_decay and state, from what `attend` took and returned."""
    dy, q, k, v, y = rows(dy), rows(q), rows(k), rows(v), rows(y)
    dnew_state = None if dnew_state is None else dnew_state.contiguous()
    new_state = new_state.contiguous()
    dq, dk, dv, da, dstate = _dense_like(q, k, v, log_decay, state)
    tensors = {"log_decay": log_decay, "y": y, "total": total, "dy": dy, "dq": dq, "dk": dk, "dv": dv}
    decay = {} if log_decay is None else {"dlog_decay": da}
    call = _call(q, k, v, scale, normalize, {**tensors, **decay}, chunk=chunk, folded=folded, **mechanism)
    state, call.dstate = state_in(call, state), pointer(dstate)
    call.new_state, call.dnew_state = pointer(new_state), pointer(dnew_state)
    run(kernel, call)
    return dq, dk, dv, da, dstate


@operator(
    f"chunked({INPUTS}, Tensor? state, float scale, bool normalize, int chunk, SymInt folded) -> (Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=chunked_fake,
    flops=chunked_flops,
    save=save,
    backward=_chunked_gradients,
    on_gpu=gpu.kernel("chunked", "chunked"),
)
def _chunked(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return attend("chunked_forward", *arguments)


@operator(
    f"chunked_backward(Tensor dy, Tensor? dnew_state, {INPUTS}, Tensor? state, Tensor y, Tensor total, Tensor new_state, "
    "float scale, bool normalize, int chunk, SymInt folded) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=chunked_backward_fake,
    flops=chunked_backward_flops,
    on_gpu=gpu.kernel("chunked", "chunked_backward"),
)
def _chunked_backward(*arguments: Any) -> tuple[Tensor, ...]:
    return attend_backward("chunked_backward", *arguments)


# --- squared scores, directly or through the state as the number of queries says: for compilers, that see one operator


def _goes_direct(q: Tensor) -> bool:
    rival = "triton" if gpu.runs_on(q) else "native"
    return q.shape[1] <= longest_direct(rival, q.shape[3] * (q.shape[3] + 1) // 2)


def _squared_flops(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return _quadratic_flops(q, k, v, 0)


def _squared_backward_flops(dy: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return _quadratic_backward_flops(dy, q, k, v, 0)


def _squared_gradients(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    dq, dk, dv, dlog_decay = torch.ops.maclaurin.squared_backward(dy, *saved, *ctx.options)
    return dq, dk, dv, None if saved[3] is None else dlog_decay, None, None, None


def _squared_forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, normalize: bool, chunk: int
) -> tuple[Tensor, Tensor]:
    if _goes_direct(q):
        y, total = _quadratic(q, k, v, log_decay, scale, False, normalize, 0)
    else:
        y, total, _ = _chunked(q, k, v, log_decay, None, scale, normalize, chunk, 0)
    return y, total


def _squared_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    log_decay, y, total, scale, normalize, chunk = saved
    found: tuple[Tensor, ...]
    if _goes_direct(q):
        found = _quadratic_backward(dy, q, k, v, log_decay, y, total, scale, False, normalize, 0)
        return found
    nothing = q.new_empty(0)
    found = _chunked_backward(dy, None, q, k, v, log_decay, None, y, total, nothing, scale, normalize, chunk, 0)
    return found[:4]


operator(
    f"squared({INPUTS}, float scale, bool normalize, int chunk) -> (Tensor, Tensor)",
    shapes=SHAPES,
    fake=_quadratic_fake,
    flops=_squared_flops,
    save=save,
    backward=_squared_gradients,
    on_gpu=_squared_forward,
)(_squared_forward)
operator(
    f"squared_backward(Tensor dy, {INPUTS}, Tensor y, Tensor total, float scale, bool normalize, int chunk) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    shapes=SHAPES,
    fake=_quadratic_backward_fake,
    flops=_squared_backward_flops,
    on_gpu=_squared_backward,
)(_squared_backward)


# --- squared scores over whole sequences, every query against every key


def _ways(log_decay: Tensor | None) -> tuple[int, ...]:
    return (ALL,) if log_decay is None else (BACK, FORTH)


def _whole_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _fake_outputs(q, v)


def _whole_gradients(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    dq, dk, dv, dlog_decay = torch.ops.maclaurin.whole_backward(dy, *saved, *ctx.options)
    return dq, dk, dv, None if saved[3] is None else dlog_decay, None, None


def _whole_flops(q: Shape, k: Shape, v: Shape, a: Shape | None, *_: Any, **__: Any) -> int:
    through_state = 2 * sum(_state_products(q, k, v))
    return through_state if a is None else 2 * through_state + 4 * _pair_products(q, v, LONGEST_CHUNK / 2)


def _whole_backward_flops(dy: Shape, q: Shape, k: Shape, v: Shape, a: Shape | None, *_: Any, **__: Any) -> int:
    reads, writes = _state_products(q, k, v)
    return (1 if a is None else 2) * 2 * (2 * reads + 3 * writes)


@operator(
    f"whole({INPUTS}, float scale, bool normalize) -> (Tensor, Tensor)",
    shapes=WHOLE,
    fake=_whole_fake,
    flops=_whole_flops,
    save=save,
    backward=_whole_gradients,
)
def _whole(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, normalize: bool
) -> tuple[Tensor, Tensor]:
    q, k, v = rows(q), rows(k), rows(v)
    y, total = _outputs(q, v)
    tensors = {"log_decay": log_decay, "y": y, "total": total}
    for way in _ways(log_decay):
        run("chunked_forward", _call(q, k, v, scale, normalize, tensors, chunk=LONGEST_CHUNK, way=way))
    return y, total


@operator(
    f"whole_backward(Tensor dy, {INPUTS}, Tensor y, Tensor total, float scale, bool normalize) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    shapes=WHOLE,
    fake=_quadratic_backward_fake,
    flops=_whole_backward_flops,
)
def _whole_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    log_decay, y, total, scale, normalize = saved
    given = {"log_decay": log_decay, "y": rows(y), "total": total, "dy": rows(dy)}
    gradients = [
        _gradients("chunked_backward", (q, k, v), given, scale, normalize, chunk=LONGEST_CHUNK, way=way)
        for way in _ways(log_decay)
    ]
    return gradients[0] if len(gradients) == 1 else tuple(back.add_(forth) for back, forth in zip(*gradients, strict=True))


# --- multiply-adds


def _keys_met(q: Shape, k: Shape, window: int) -> float:
    """By a query, on average."""
    every = k[1] - q[1] / 2
    return min(every, window) if window else every


def _pair_products(q: Shape, v: Shape, keys_met: float) -> int:
    """Of scores and of weighted values."""
    B, T, H, K = q
    return int(B * H * T * keys_met * (K + v[3]))


def _state_products(q: Shape, k: Shape, v: Shape) -> tuple[int, int]:
    """Of all reads and of all writes of the state."""
    features = q[3] * (q[3] + 1) // 2 * (v[3] + 1)
    return q[0] * q[1] * q[2] * features, k[0] * k[1] * k[2] * features
