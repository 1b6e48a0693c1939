"""The elementwise recurrence between three gates, and a gelu gate on what comes out: the cell of the quasi-LSTM.

    h_t = σ(f_t)⊙h_{t-1} + σ(i_t)⊙u_t        y_t = gelu(g_t)⊙σ(o_t)⊙h_t

It is `linear_scan` with a decay log σ(f). In one kernel its gates are never written: written one by one they
take more memory traffic than all the rest.
"""

# B batch, T time, C channels

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.ops import checks, native
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.scan import CHUNK, scanned
from maclaurin.ops.states import ScanState

OPEN = 1e4  # σ of it is 1: padding forgets nothing


@with_options
def gated_scan(
    u: Tensor,
    gates: Tensor,
    g: Tensor,
    *,
    state: ScanState | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, ScanState | None]:
    """y and the state h, for u and g (B,T,C) and gates (B,T,3C), which are f, i and o side by side, before their sigmoids.

    h_0 is the state's, or zero. Other arguments as in `linear_scan`.
    """
    call = Options.of(gated_scan, options)
    call.check()
    _check(u, gates, g, state)
    dtype = torch.promote_types(u.dtype, torch.float32)
    step = call.at_once(u.shape[1], chunk_size)
    natively = call.natively("gated_scan", u)

    @without_autocast
    def dense(inputs: Inputs, state: ScanState | None, lengths: Tensor | None) -> tuple[Tensor, ScanState | None]:
        u, gates, g = (x.to(dtype) for x in inputs if x is not None)
        start = None if state is None else state.recurrent.to(dtype)
        if lengths is not None:
            gates = _open_at_padding(gates, lengths)
        run = _natively if natively else _in_operators
        y, end = run(u, gates, g, start, step)
        return y.to(inputs[0].dtype), ScanState(end) if call.return_state else None  # type: ignore[union-attr]

    return call.over_documents(dense, (u, gates, g), state)


def _natively(u: Tensor, gates: Tensor, g: Tensor, start: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
    y, _, end = native.call("gated_scan", u, gates, g, start)
    return y, end


def _in_operators(u: Tensor, gates: Tensor, g: Tensor, start: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
    f, i, o = gates.chunk(3, dim=-1)
    h = scanned(torch.sigmoid(i) * u, F.logsigmoid(f), start, step)
    return F.gelu(g) * torch.sigmoid(o) * h, h[:, -1].clone()


def _open_at_padding(gates: Tensor, lengths: Tensor) -> Tensor:
    places = torch.arange(gates.shape[1], dtype=torch.long, device=gates.device)
    padding_BT11 = (places >= lengths[:, None])[..., None, None]
    forget_31 = gates.new_tensor([OPEN, 0, 0])[:, None]
    opened_BTD: Tensor = (gates.unflatten(-1, (3, -1)) + padding_BT11 * forget_31).flatten(-2)
    return opened_BTD


def _check(u: Tensor, gates: Tensor, g: Tensor, state: ScanState | None) -> None:
    checks.not_traced()
    checks.tensor("u", u, "batch, time, channels")
    if u.shape[1] == 0:
        raise ValueError(f"u must have at least one token, got {checks.shape(u)}")
    for name, x, channels in (("gates", gates, 3 * u.shape[2]), ("g", g, u.shape[2])):
        checks.tensor(name, x, "batch, time, channels")
        if x.shape != (*u.shape[:2], channels):
            raise ValueError(f"{name} must be {(*u.shape[:2], channels)} beside u {checks.shape(u)}, got {checks.shape(x)}")
    checks.sound_state(state, ScanState, u)
    if state is not None and state.recurrent.shape[1:] != u.shape[2:]:
        raise ValueError(f"state must be {tuple(u.shape[2:])} per sequence, got {tuple(state.recurrent.shape[1:])}")
