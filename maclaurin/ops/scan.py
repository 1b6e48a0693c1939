"""The elementwise linear recurrence h_t = exp(a_t)·h_{t-1} + x_t: every channel has a state of its own.

Neighbours are joined in pairs, (λ, x) then (λ', x') being (λλ', λ'x + x'); the sequence of pairs, half as long, is solved in
the same way, and the tokens in between follow from it in one step. That is about twice the work of the loop over tokens, in
2·log₂ T steps over all of them. Every factor is at most 1: nothing is divided, no logarithms are subtracted.

The gradient is the same recurrence from the other end, g_t = dh_t + exp(a_{t+1})·g_{t+1}, with dx_t = g_t and
da_t = g_t·exp(a_t)·h_{t-1}. It needs the inputs and outputs and nothing else, so memory is linear in time.

A decay is a number near 1, which float32 knows to 6e-8: a state of n tokens is exact to about n times that.
"""

# B batch, T time, C channels

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold

from maclaurin.ops import checks, decay, native
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import ScanState
from maclaurin.ops.transforms import is_transformed

CHUNK = 512  # tokens that are joined at a time: enough to be parallel, few enough to stay in a cache


@with_options
def linear_scan(
    x: Tensor,
    log_decay: Tensor,
    *,
    state: ScanState | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, ScanState | None]:
    """h_t = exp(log_decay_t)·h_{t-1} + x_t for x and log_decay <= 0 of one shape (B, T, ...); h_0 is the state's, or zero.

    The forms differ in how many tokens are joined at a time: all, `chunk_size` or one; natively in nothing.
    """
    call = Options.of(linear_scan, options)
    call.check()
    _check(x, log_decay, state)
    dtype = torch.promote_types(x.dtype, torch.float32)
    step = call.at_once(x.shape[1], chunk_size)
    natively = call.natively("linear_scan", x)

    @without_autocast
    def dense(inputs: Inputs, state: ScanState | None, lengths: Tensor | None) -> tuple[Tensor, ScanState | None]:
        # lengths make no difference: padding has x = 0 and the log decay 0, so the state passes through it unchanged
        x, log_decay = inputs
        assert x is not None and log_decay is not None
        x_BTC, a_BTC = (tensor.to(dtype).flatten(2) for tensor in (x, log_decay))
        start_BC = None if state is None else state.recurrent.to(dtype).flatten(1)
        inner = (x_BTC, a_BTC, start_BC)
        h_BTC: Tensor = native.call("linear_scan", *inner) if natively else scanned(*inner, step)
        after = ScanState(h_BTC[:, -1].clone().view(x.shape[0], *x.shape[2:])) if call.return_state else None
        return h_BTC.view(x.shape).to(x.dtype), after

    return call.over_documents(dense, (x, log_decay), state)


def scanned(x_BTC: Tensor, log_decay_BTC: Tensor, start_BC: Tensor | None, step: int) -> Tensor:
    """All h, joining `step` tokens at a time."""
    start = x_BTC.new_zeros(x_BTC.shape[0], x_BTC.shape[2]) if start_BC is None else start_BC
    if is_transformed():
        return _in_steps(x_BTC, log_decay_BTC, start, step)
    scan = _scanned if is_unrolled(x_BTC) else _Scan.apply
    h_BTC: Tensor = scan(x_BTC, log_decay_BTC, start, step)
    return h_BTC


def _in_steps(x_BTC: Tensor, log_decay_BTC: Tensor, start_BC: Tensor, step: int) -> Tensor:
    if step > 1 and not x_BTC.is_cpu:  # there is no cache to stay in, and every step is some launches
        step = x_BTC.shape[1]
    pieces, before_BC = [], start_BC
    for x, a in zip(x_BTC.split(step, dim=1), log_decay_BTC.split(step, dim=1), strict=True):
        pieces.append(_joined(x, decay.factor(a, x.dtype), before_BC))
        before_BC = pieces[-1][:, -1]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, log_decay_BTC: Tensor, start_BC: Tensor, step: int) -> Tensor:
        h_BTC = _in_steps(x_BTC, log_decay_BTC, start_BC, step)
        ctx.save_for_backward(h_BTC, log_decay_BTC, start_BC)
        ctx.step = step
        return h_BTC

    @staticmethod
    def backward(ctx: Any, dh_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        h_BTC, a_BTC, start_BC = ctx.saved_tensors
        later_BTC = torch.cat([a_BTC[:, 1:], torch.zeros_like(a_BTC[:, :1])], dim=1)
        g_BTC = scanned(dh_BTC.flip(1), later_BTC.flip(1), None, ctx.step).flip(1)
        # g_t·exp(a_t) is what reaches the token before
        reaching_BTC = g_BTC * decay.factor(a_BTC, g_BTC.dtype)
        before_BTC = torch.cat([start_BC[:, None], h_BTC[:, :-1]], dim=1)
        return g_BTC, reaching_BTC * before_BTC, reaching_BTC[:, 0], None


def _shape(x_BTC: Tensor, *_: Any) -> Tensor:
    return torch.empty(x_BTC.shape, dtype=x_BTC.dtype, device=x_BTC.device)


@one_operator("scanned(Tensor x, Tensor log_decay, Tensor start, SymInt step) -> Tensor", fake=_shape)
def _scanned(*arguments: Any) -> Tensor:
    h_BTC: Tensor = _Scan.apply(*arguments)
    return h_BTC


def _joined(x_BTC: Tensor, factor_BTC: Tensor, start_BC: Tensor) -> Tensor:
    T = x_BTC.shape[1]
    if T == 1:
        return torch.addcmul(x_BTC, factor_BTC, start_BC[:, None])
    pairs = slice(0, T - T % 2, 2)
    x_pairs = torch.addcmul(x_BTC[:, 1::2], factor_BTC[:, 1::2], x_BTC[:, pairs])
    odd_BTC = _joined(x_pairs, _normal(factor_BTC[:, pairs] * factor_BTC[:, 1::2]), start_BC)
    before_BTC = torch.cat([start_BC[:, None], odd_BTC[:, : (T - 1) // 2]], dim=1)
    even_BTC = torch.addcmul(x_BTC[:, ::2], factor_BTC[:, ::2], before_BTC)
    # out of place: under vmap any one of the inputs may be that of all examples
    return torch.stack([even_BTC, pad(odd_BTC, (0, 0, 0, T % 2))], dim=2).flatten(1, 2)[:, :T]


def _normal(factor: Tensor) -> Tensor:
    """Zero where a product with it could be subnormal, as in `decay.factor`."""
    return threshold(factor, torch.finfo(factor.dtype).tiny * math.exp(27), 0.0)


def _check(x: Tensor, log_decay: Tensor, state: ScanState | None) -> None:
    checks.not_traced()
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"x must be a floating point tensor, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
    if x.dim() < 3 or x.shape[1] == 0:
        raise ValueError(f"x must have shape (batch, time >= 1, channels, ...), got {checks.shape(x)}")
    checks.no_growth(log_decay)
    if log_decay.shape != x.shape:
        raise ValueError(f"log_decay must have the shape of x {checks.shape(x)}, got {checks.shape(log_decay)}")
    checks.sound_state(state, ScanState, x)
    if state is not None and state.recurrent.shape[1:] != x.shape[2:]:
        raise ValueError(f"state must be {tuple(x.shape[2:])} per sequence, got {tuple(state.recurrent.shape[1:])}")
