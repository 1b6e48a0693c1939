"""Launches of the chunked form: `maclaurin::chunked` and its backward on a GPU.

The keys are taken in two parts, those that are folded into the returned state and the rest, which starts from it. A part is
the whole of the mathematics: queries, keys and a state before them give outputs and a state behind them.
"""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels (D, DV padded),
# F = K(K+1)/2 monomials, W = V or V+1 columns of a state

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops.gpu import chunk_kernels, layout, state_kernels
from maclaurin.ops.gpu.direct import (
    Call,
    Gradients,
    blocks,
    direct_gradients,
    divisors,
    joined,
    padded,
    strides,
    value_blocks,
)
from maclaurin.ops.gpu.step import step

WORKSPACE_BYTES = 512 * 2**20  # of chunk states at a time; heads beyond it wait


class Outputs(NamedTuple):
    """The gradient by outputs, the outputs, and their divisors."""

    dy: Tensor
    y: Tensor
    total: Tensor


@dataclass(frozen=True)
class States:
    """What stands before every chunk of a part, and behind the last one; mean: the keys' own where they are centred."""

    states: Tensor
    grams: Tensor
    moments: Tensor
    mean: Tensor
    end: Tensor | None  # (B,G,F,W), plain


def chunked(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    scale: float, normalize: bool, chunk: int, folded: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if q.shape[1] == 1 and state is not None and not folded:
        return *step(q, k, v, log_decay, state, scale, normalize), q.new_empty(0, dtype=torch.float32)
    found = [_some_heads(*some, scale, normalize, chunk, folded) for some in _by_heads(q, k, v, log_decay, state, chunk)]
    y, total, new_state = (list(x) for x in zip(*found, strict=True))
    return joined(y, 2).contiguous(), joined(total, 2).contiguous(), joined(new_state, 1) if folded else new_state[0]


def chunked_backward(
    dy: Tensor, dnew_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    y: Tensor, total: Tensor, new_state: Tensor, scale: float, normalize: bool, chunk: int, folded: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    R = q.shape[2] // k.shape[2]
    found, start = [], 0
    for some in _by_heads(q, k, v, log_decay, state, chunk):
        groups = some[1].shape[2]
        heads, keys = slice(start * R, (start + groups) * R), slice(start, start + groups)
        d_new, new = (None if x is None or x.numel() == 0 else x[:, keys] for x in (dnew_state, new_state))
        of_outputs = Outputs(dy[:, :, heads], y[:, :, heads], total[:, :, heads])
        found.append(_some_gradients(of_outputs, d_new, new, *some, scale, normalize, chunk, folded))
        start += groups
    dq, dk, dv, da, dstate = (list(x) for x in zip(*found, strict=True))
    gradients = [joined(x, 2).contiguous() for x in (dq, dk, dv)]
    of_decay = q.new_empty(0) if log_decay is None else joined(da, 2).contiguous()
    return *gradients, of_decay, q.new_empty(0) if state is None else joined(dstate, 1)


def _by_heads(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None, chunk: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]]:
    """As many key-value heads at a time as their states have room for."""
    B, S, G, K = k.shape
    R = q.shape[2] // G
    per_head = B * blocks(S, chunk) * K * K * v.shape[3] * 2
    some = max(1, WORKSPACE_BYTES // per_head)
    for start in range(0, G, some):
        g, h = slice(start, start + some), slice(start * R, (start + some) * R)
        a = None if log_decay is None else log_decay[:, :, g]
        yield q[:, :, h], k[:, :, g], v[:, :, g], a, None if state is None else state[:, g]


def _parts(queries: int, keys: int, folded: int) -> Iterator[tuple[slice, slice]]:
    """The keys that are folded and the rest, each with the queries that stand there."""
    before = keys - queries
    for start, end in ((0, folded), (folded, keys)):
        if start < end:
            yield slice(start, end), slice(max(start - before, 0), max(end - before, 0))


def _some_heads(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    scale: float, normalize: bool, chunk: int, folded: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    outputs, totals, new_state = [], [], q.new_empty(0, dtype=torch.float32)
    for keys, queries in _parts(q.shape[1], k.shape[1], folded):
        a = None if log_decay is None else log_decay[:, keys]
        keep = keys.stop == folded
        y, total, end = _part(q[:, queries], k[:, keys], v[:, keys], a, state, scale, normalize, chunk, keep)
        outputs.append(y)
        totals.append(total)
        if end is not None:
            state = new_state = end
    return joined(outputs, 1), joined(totals, 1), new_state


def _part(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    scale: float, normalize: bool, chunk: int, keep: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """y, its divisors, and the packed state behind the last key. Slots without a query have one of zeros."""
    T, S = q.shape[1], k.shape[1]
    K = k.shape[3]
    q = q if T == S else pad(q, (0, 0, 0, 0, S - T, 0))
    outputs, ends, total, count = [], [], None, None
    for some in value_blocks(v):
        call = Call.of(q, k, v[..., some], log_decay, scale, normalize)
        start = None if state is None else layout.plain_of(_columns(state, some, v.shape[3], normalize), K, scale)
        size = _chunk_of(call, chunk)
        states = _states(call, start, size, keep)
        y, total = _read(call, states, size, state is not None) if T else call.outputs()
        outputs.append(y[:, S - T :, :, : call.value_channels])
        if states.end is not None:
            ends.append(states.end[..., : call.value_channels])
            count = states.end[..., call.value_channels :]
    assert total is not None
    end = None if count is None else layout.packed_of(torch.cat([*ends, count], -1), K, scale)
    return joined(outputs, -1).to(q.dtype), total[:, S - T :], end


def _columns(state: Tensor, some: slice, V: int, normalize: bool) -> Tensor:
    """Those of some value channels, and what counts."""
    if some.stop >= V and some.start == 0:
        return state
    values = state[..., :V][..., some]
    return torch.cat([values, state[..., V:]], -1) if normalize else values


def _chunk_of(call: Call, chunk: int) -> int:
    return max(call.tiles.rows, chunk // call.tiles.rows * call.tiles.rows)


def _states(call: Call, start: Tensor | None, chunk: int, keep: bool) -> States:
    """start (B,G,F,W), plain: the state before the first key."""
    D, DV = call.channels
    K, V = call.key_channels, call.value_channels
    weight, across = call.sums.to_end(chunk), call.sums.across(chunk)
    keys, mean, counted = call.k, call.sums.hi, weight
    if call.sums.exact is None:
        counted, across = _ones(call, chunk)
    first = zeroth = None
    if call.precision.centred:
        keys, mean, real = _centred(call.k)
        counted = counted * real
        if start is not None:
            start, first, zeroth = layout.without_mean(start, mean, K)
    at_start = None if start is None else pad(layout.in_pairs(start[..., :V], K, D), (0, DV - V))
    states, last = _walk(call, keys, call.v, weight, across, at_start, chunk, False, keep)
    grams = moments = mean
    end = None if last is None else layout.of_pairs(last, K, D)[..., :V]
    last_first, last_zeroth = [], []
    if call.precision.centred:
        before = (
            None
            if first is None or zeroth is None
            else pad(torch.cat([first, zeroth[:, :, None]], 2)[..., :V], (0, DV - V, 0, 1))
        )
        moments, behind = _moments(call, keys, call.v, counted, across, None, before, chunk, False)
        last_first, last_zeroth = [behind[:, :, :D, :V]], [behind[:, :, D, :V]]
    if call.normalize:
        before = None if start is None else _gram_before(start, first, zeroth, K, D)
        grams, behind = _moments(call, keys, keys, counted, across, None, before, chunk, False)
        last_first.append(behind[:, :, D, :, None])
        last_zeroth.append(behind[:, :, D + 1, :1])
        if end is not None:
            end = torch.cat([end, layout.of_square(behind[:, :, :D, :, None], K)], -1)
    if end is not None and call.precision.centred:
        end = layout.with_mean(end, mean, torch.cat(last_first, -1), torch.cat(last_zeroth, -1), K)
    return States(states, grams, moments, mean, end)


def _gram_before(start: Tensor, first: Tensor | None, zeroth: Tensor | None, K: int, D: int) -> Tensor:
    """(B,G,D+2,D): Z before the first key, and what counts the keys."""
    gram = layout.square(start[..., -1:], K, D)[..., 0]
    if first is None or zeroth is None:
        return pad(gram, (0, 0, 0, 2))
    count = zeroth[:, :, None, -1:].expand(-1, -1, -1, D)
    return torch.cat([gram, first[:, :, None, :, -1], count], 2).contiguous()


def _centred(k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k̃ in the dtype of k, μ (B,G,D), and which keys (B,G,S) it was taken from: those of zeros, as padding has, stay so."""
    real_BSG = (k != 0).any(-1)
    wide = k.float()
    mean = wide.sum(1) / real_BSG.sum(1).clamp(min=1)[..., None]
    real_BGS = real_BSG.transpose(1, 2).float()
    return (wide - mean[:, None] * real_BSG[..., None]).to(k.dtype), mean, real_BGS


def _ones(call: Call, chunk: int) -> tuple[Tensor, Tensor]:
    """The decay of every token and of every chunk where there is none."""
    B, _, S, _, G = call.sizes
    of_tokens, of_chunks = (torch.ones(B, G, n, dtype=torch.float32, device=call.k.device) for n in (S, blocks(S, chunk)))
    return of_tokens, of_chunks


def _walk(
    call: Call, x: Tensor, w: Tensor, weight: Tensor, across: Tensor, start: Tensor | None, chunk: int,
    backward: bool, keep: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The states before every chunk (behind it, backwards), and the last one, in pairs."""
    B, _, S, H, G = call.sizes
    D, DV = call.channels
    count, tile = blocks(S, chunk), call.tiles.walk
    shape = (layout.pairs(D), layout.TILE**2, DV)
    states = torch.empty(B, G, count, *shape, dtype=call.precision.states, device=x.device)
    end = torch.empty(B, G, *shape, dtype=torch.float32, device=x.device) if keep else None
    state_kernels.state_walk[(shape[0] * 16 // tile.bn, B * G)](
        x, w, weight, across, across if start is None else start.contiguous(), states, across if end is None else end,
        *strides(x, w), S, H if backward else G, G, chunk, count,
        R=H // G if backward else 1, BACKWARD=backward, HAS_START=start is not None, HAS_END=keep,
        **call.flags(tile, "BT", "IB"),
    )  # fmt: skip
    return states, end


def _moments(
    call: Call, x: Tensor, w: Tensor, weight: Tensor, across: Tensor, c: Tensor | None, start: Tensor | None,
    chunk: int, backward: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same for Σ x wᵀ, and what counts behind it: (B,G,chunks,D+2,·) and (B,G,D+2,·)."""
    B, _, S, H, G = call.sizes
    D, columns = x.shape[3], w.shape[3]
    count, tile = blocks(S, chunk), call.tiles.moments
    moments = torch.empty(B, G, count, D + 2, columns, dtype=torch.float32, device=x.device)
    end = torch.empty(B, G, D + 2, columns, dtype=torch.float32, device=x.device)
    flags = call.flags(tile, "BT") | {"DV": columns, "P": call.precision.gram}
    del flags["DECAY"]
    state_kernels.moments_of_chunk[(count, B * G)](
        x, w, weight, weight if c is None else c, moments, *strides(x, w), S, H if backward else G, G, chunk,
        R=H // G if backward else 1, HAS_C=c is not None, **flags,
    )  # fmt: skip
    numbers = (D + 2) * columns
    state_kernels.moments_walk[(blocks(numbers, 1024), B * G)](
        moments, across, across if start is None else start.contiguous(), end, count, numbers,
        BLOCK=1024, BACKWARD=backward, HAS_START=start is not None,
    )  # fmt: skip
    return moments, end


def _read(call: Call, states: States, chunk: int, has_start: bool) -> tuple[Tensor, Tensor]:
    B, T, _, H, G = call.sizes
    tile, sums = call.tiles.forward, call.sums
    y, total = call.outputs()
    chunk_kernels.chunk_forward[(blocks(T, tile.bm), B * H)](
        call.q, call.k, call.v, sums.to_end(tile.bn), sums.hi, sums.lo,
        states.states, states.grams, states.moments, states.mean, y, total,
        *strides(call.q, call.k, call.v, y), T, H, G, chunk, states.states.shape[2], call.scale**2, call.precision.guard,
        NORMALIZE=call.normalize, HAS_START=has_start, CENTRED=call.precision.centred, PZ=call.precision.gram,
        **call.flags(tile, "BM", "BN"),
    )  # fmt: skip
    return y, total


# --- backward


def _some_gradients(
    outputs: Outputs, dnew_state: Tensor | None, new_state: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    scale: float, normalize: bool, chunk: int, folded: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dq, dk, dv, da and dstate, the last part first: the gradient by its start is one by the end of the part before."""
    found: list[tuple[Tensor, ...]] = []
    dend = None
    for keys, queries in reversed(list(_parts(q.shape[1], k.shape[1], folded))):
        a = None if log_decay is None else log_decay[:, keys]
        start, end = state if keys.start == 0 else new_state, None
        if keys.stop == folded and folded:
            end = new_state
            dend = dnew_state if dend is None else dend if dnew_state is None else dend + dnew_state
        here = Outputs(*(x[:, queries] for x in outputs))
        tokens = (q[:, queries], k[:, keys], v[:, keys], a)
        gradients, dend = _part_gradients(here, end, dend, *tokens, start, scale, normalize, chunk)
        found.insert(0, gradients)
    dq, dk, dv, *da = (joined(x, 1) for x in zip(*found, strict=True))
    return dq, dk, dv, da[0] if da else q.new_empty(0), q.new_empty(0) if dend is None else dend


def _part_gradients(
    outputs: Outputs, end: Tensor | None, dend: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor | None,
    scale: float, normalize: bool, chunk: int,
) -> tuple[tuple[Tensor, ...], Tensor | None]:  # fmt: skip
    """dq, dk, dv and, where there is a decay, da; and the gradient by the state before the part."""
    T, S, K, V = q.shape[1], k.shape[1], k.shape[3], v.shape[3]
    dy, y, total = outputs
    if T < S:  # slots without a query
        q, dy, y = (pad(x, (0, 0, 0, 0, S - T, 0)) for x in (q, dy, y))
        total = pad(total, (0, 0, S - T, 0), value=1.0)
    c, delta = divisors(y, dy, total, scale, normalize)
    used = total.transpose(1, 2) > 0 if normalize else torch.ones_like(c)
    found, starts, count = Gradients(), [], None
    for some in value_blocks(v):
        call = Call.of(q, k, v[..., some], log_decay, scale, normalize)
        start = None if state is None else layout.plain_of(_columns(state, some, V, normalize), K, scale)
        behind = None if dend is None else layout.plain_of_gradient(_columns(dend, some, V, normalize), K, scale)
        if count is not None and behind is not None and normalize:
            behind = torch.cat([behind[..., :-1], torch.zeros_like(behind[..., -1:])], -1)
        gradients, dstart = _through_states(call, c, delta, used, padded(dy[..., some], call.q.dtype), start, behind, chunk)
        found.add(gradients, call.value_channels)
        if state is not None:
            starts.append(dstart[..., : call.value_channels])
            count = dstart[..., call.value_channels :] if count is None else count
        delta = torch.zeros_like(delta)
    extra = None if dend is None or end is None else (end * dend).sum((2, 3), dtype=torch.float64)
    dq, dk, dv, da = found.finished(q, k, v, log_decay, extra)
    dstate = None if count is None else layout.packed_of_gradient(torch.cat([*starts, count], -1), K, scale)
    gradients = (dq[:, S - T :], dk, dv)
    return gradients if log_decay is None else (*gradients, da), dstate


def _through_states(
    call: Call, c: Tensor, delta: Tensor, used: Tensor, dy: Tensor, start: Tensor | None, behind: Tensor | None, chunk: int
) -> tuple[tuple[Tensor, ...], Tensor]:  # fmt: skip
    """The gradients of `direct_gradients` with those through the states, and plain by the state before the first key.

    The states are built again: keeping them would take more memory than all else.
    """
    B, T, _, H, G = call.sizes
    D, DV = call.channels
    K, V = call.key_channels, call.value_channels
    chunk = _chunk_of(call, chunk)
    states = _states(call, start, chunk, False)
    to_end, from_before, across = call.sums.to_end(chunk), call.sums.from_before(chunk), call.sums.across(chunk)
    u = (dy.float() * (c * used).transpose(1, 2)[..., None]).to(call.q.dtype)
    of_divisor = -delta * c * used
    at_end = None if behind is None else pad(layout.in_pairs(behind[..., :V], K, D), (0, DV - V))
    d_states, d_start = _walk(call, call.q, u, from_before, across, at_end, chunk, True, True)
    assert d_start is not None
    dstart = layout.of_pairs(d_start, K, D)[..., :V]
    d_grams = states.grams
    if call.normalize:
        counted, all_across = (from_before, across) if call.sums.exact is not None else _ones(call, chunk)
        before = None if behind is None else pad(layout.square(behind[..., -1:], K, D)[..., 0], (0, 0, 0, 2))
        d_grams, first = _moments(call, call.q, call.q, counted, all_across, of_divisor, before, chunk, True)
        dstart = torch.cat([dstart, layout.of_square(first[:, :, :D, :, None], K)], -1)
    dq, dk, dv, half_q, half_k = direct_gradients(call, c, delta, dy, chunk)
    tile, count = call.tiles.through_state, states.states.shape[2]
    flags, precision = call.flags(tile, "BM"), call.precision
    of_k = flags | {"NORMALIZE": call.normalize, "PZ": precision.gram}
    chunk_kernels.chunk_backward_q[(blocks(T, tile.bm), B * H)](
        call.q, u, of_divisor, from_before, states.states, states.grams, states.moments, states.mean, dq, half_q,
        *strides(call.q, u), T, H, G, chunk, count, HAS_START=start is not None, CENTRED=precision.centred, **of_k,
    )  # fmt: skip
    grid = (blocks(T, tile.bm), B * G)
    chunk_kernels.chunk_backward_k[grid](
        call.k, call.v, to_end, d_states, d_grams, dk, half_k, *strides(call.k, call.v), T, G, chunk, count,
        HAS_END=behind is not None, **of_k,
    )  # fmt: skip
    chunk_kernels.chunk_backward_v[grid](
        call.k, to_end, d_states, dv, *strides(call.k), T, G, chunk, count, HAS_END=behind is not None, **flags
    )
    return (dq, dk, dv, half_q, half_k), dstart
