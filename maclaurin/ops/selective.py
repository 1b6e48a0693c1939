"""The selective scan of S6, Mamba's core: a recurrence whose decay, input and readout all depend on the token.

    h_t = exp(-dt_t·rate)⊙h_{t-1} + (dt_t⊙x_t) b_tᵀ        y_t = h_t c_t        h_t a matrix (C, N)

The decay differs in every entry of h, so there is no matrix over pairs of tokens to fall back on: h itself is needed at
every token. It is written out for one chunk of tokens at a time, read, and forgotten; the backward pass computes it again
from the state at the chunk's start. The native kernel keeps it in registers.
"""

# B batch, T time, C channels, N state dimensions

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from maclaurin.ops import checks, native
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.scan import scanned
from maclaurin.ops.states import ScanState
from maclaurin.ops.transforms import recomputed

CHUNK = 64
EXPANSION_BYTES = 2**31  # how much of h may exist at a time where launches cost more than a chunk; tokens beyond it wait


@with_options
def selective_scan(
    x: Tensor,
    dt: Tensor,
    rate: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    state: ScanState | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, ScanState | None]:
    """x (B,T,C), dt (B,T,C) >= 0, rate (C,N) >= 0, b and c (B,T,N) -> y (B,T,C) and the state (B,C,N).

    The forms differ in how many tokens are taken at a time: all, `chunk_size` or one; natively in nothing.
    """
    call = Options.of(selective_scan, options)
    call.check()
    _check(x, dt, rate, b, c, state)
    dtype = torch.promote_types(x.dtype, torch.float32)
    step = call.at_once(x.shape[1], chunk_size)
    natively = call.natively("selective_scan", x)

    @without_autocast
    def dense(inputs: Inputs, state: ScanState | None, lengths: Tensor | None) -> tuple[Tensor, ScanState | None]:
        # lengths make no difference: padding has dt = 0, which neither decays nor adds
        x, dt, b, c = (tensor.to(dtype) for tensor in inputs if tensor is not None)
        start = None if state is None else state.recurrent.to(dtype)
        if natively:
            y, recurrent = native.call("selective_scan", x, dt, rate.to(dtype), b, c, start)
        else:
            run = _as_operator if is_unrolled(x) else _in_chunks
            y, recurrent = run(x, dt, rate.to(dtype), b, c, start, step)
        return y.to(given), ScanState(recurrent) if call.return_state else None

    given = x.dtype
    return call.over_documents(dense, (x, dt, b, c), state)


def _in_chunks(
    x_BTC: Tensor, dt_BTC: Tensor, rate_CN: Tensor, b_BTN: Tensor, c_BTN: Tensor, start: Tensor | None, step: int
) -> tuple[Tensor, Tensor]:
    state_BCN = x_BTC.new_zeros(x_BTC.shape[0], *rate_CN.shape) if start is None else start
    if step > 1 and not x_BTC.is_cpu:
        step = max(step, EXPANSION_BYTES // (state_BCN.numel() * state_BCN.element_size()))
    outputs = []
    for start_time in range(0, x_BTC.shape[1], step):
        now = slice(start_time, start_time + step)
        pieces = (x_BTC[:, now], dt_BTC[:, now], rate_CN, b_BTN[:, now], c_BTN[:, now], state_BCN)
        y, state_BCN = recomputed(_chunk, *pieces)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state_BCN


def _shapes(x: Tensor, dt: Tensor, rate: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    state = torch.empty(x.shape[0], *rate.shape, dtype=x.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), state


_as_operator = one_operator(
    "selective_in_chunks(Tensor x, Tensor dt, Tensor rate, Tensor b, Tensor c, Tensor? start, SymInt step) "
    "-> (Tensor, Tensor)",
    fake=_shapes,
)(_in_chunks)


def _chunk(
    x_BTC: Tensor, dt_BTC: Tensor, rate_CN: Tensor, b_BTN: Tensor, c_BTN: Tensor, state_BCN: Tensor
) -> tuple[Tensor, Tensor]:
    x_BTCN = (dt_BTC * x_BTC)[..., None] * b_BTN[:, :, None]
    log_decay_BTCN = -dt_BTC[..., None] * rate_CN
    h = scanned(x_BTCN.flatten(2), log_decay_BTCN.flatten(2), state_BCN.flatten(1), x_BTC.shape[1])
    h_BTCN = h.view(x_BTCN.shape)
    return torch.einsum("btcn,btn->btc", h_BTCN, c_BTN), h_BTCN[:, -1].clone()


def _check(x: Tensor, dt: Tensor, rate: Tensor, b: Tensor, c: Tensor, state: ScanState | None) -> None:
    checks.tensor("x", x, "batch, time, channels")
    checks.tensor("dt", dt, "batch, time, channels")
    checks.tensor("rate", rate, "channels, state")
    if x.shape[1] == 0:
        raise ValueError(f"x must hold at least one token, got shape {checks.shape(x)}")
    if dt.shape != x.shape:
        raise ValueError(f"dt must have the shape of x {checks.shape(x)}, got {checks.shape(dt)}")
    if rate.shape[0] != x.shape[2] or rate.shape[1] == 0:
        raise ValueError(f"rate must have shape ({x.shape[2]}, state >= 1), got {checks.shape(rate)}")
    for name, value in (("b", b), ("c", c)):
        checks.tensor(name, value, "batch, time, state")
        if value.shape != (*x.shape[:2], rate.shape[1]):
            raise ValueError(f"{name} must have shape {(*x.shape[:2], rate.shape[1])}, got {checks.shape(value)}")
    for name, value in (("dt", dt), ("rate", rate)):
        checks.not_negative(name, value)
    checks.sound_state(state, ScanState, x)
    if state is not None and state.recurrent.shape[1:] != rate.shape:
        raise ValueError(f"state must be {tuple(rate.shape)} per sequence, got {tuple(state.recurrent.shape[1:])}")
