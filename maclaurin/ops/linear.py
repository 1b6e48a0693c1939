"""First-order attention: no decay, one decay per head, or one decay per key channel.

The state is one matrix per head, S_t = diag(α_t) S_{t-1} + k_t v_tᵀ, whatever the decay. A decay per head is one number per
pair, so chunks are those of `power_chunked.py` of order 1. A decay per channel does not factor so: its chunks are here.

The native kernels take a block of tokens at a time in every form; `form` and `chunk_size` only make it smaller.
"""

# B batch, T time, H heads, G key-value heads, R = H/G, N = B·G, C chunk, J chunks, I = J+1, M = N·J,
# K key channels, W value channels (+1 if normalised)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.common.arguments import at_least_one
from maclaurin.ops import checks, decay, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.backends import by_fla
from maclaurin.ops.chunks import Plan
from maclaurin.ops.features import Kernel
from maclaurin.ops.gpu import fla_core
from maclaurin.ops.native.in_place import InPlace
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.power_chunked import chunked
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import LinearState, PowerState, State
from maclaurin.ops.transforms import recomputed

CHUNK = 64
PARALLEL_UP_TO = 256  # tokens: below it the T x T matrix is faster than the state (`maclaurin bench attention`)


@with_options
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    normalize: bool = True,
    causal: bool = True,
    state: State | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, LinearState | None]:
    """Causal attention with the weights scale · Σ_c q_tc k_sc exp(a_{s+1,c} + … + a_tc), divided by their sum.

    q (B,T,H,K), k (B,T,G,K), v (B,T,G,V); log_decay (B,T,G or H), or (B,T,G or H,K) for a decay per channel, <= 0. Feature
    maps are applied to q and k before the call. Other arguments as in `power_attention` and `Options`.
    """
    if isinstance(state, InPlace):
        return state.attend(q, k, v, log_decay, default_scale(scale, q), normalize)
    call = Options.of(linear_attention, options)
    if not causal:
        from maclaurin.ops.bidirectional import bidirectional_linear  # made of this op

        whole = partial(bidirectional_linear, scale=scale, normalize=normalize, form=call.form)
        return call.over_whole_documents(whole, (q, k, v, log_decay), state)
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k, per_channel=True)
    call.check()
    checks.scale(scale)
    at_least_one("chunk_size", chunk_size)
    if log_decay is not None and log_decay.shape[2] != k.shape[2]:
        k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    scale = default_scale(scale, q)
    initial = checks.sound_state(first_order(state, scale), LinearState, q)
    state_shape = (k.shape[2], k.shape[3], v.shape[3] + normalize)
    if initial is not None and initial.recurrent.shape[1:] != state_shape:
        raise ValueError(
            f"state must have been made with the same heads and channels: it holds {tuple(initial.recurrent.shape[1:])} "
            f"(heads, key channels, value channels), the new ones need {state_shape}"
        )
    auto = "parallel" if not torch.compiler.is_compiling() and q.shape[1] <= PARALLEL_UP_TO else "chunked"
    fla = call.form in ("auto", "chunked") and by_fla(call.backend, q)
    natively = call.natively("linear_attention", q, auto, fla)
    engine = _Engine(scale, normalize, call.form, chunk_size, in_torch=not natively, by_fla=fla)
    return call.causally(engine.run, (q, k, v, log_decay), initial)


def first_order(state: State | None, scale: float) -> State | None:
    """As a LinearState what older files hold for a decay per head: a PowerState without tokens, its keys scaled."""
    if type(state) is not PowerState or state.slots > 0:
        return state
    return None if state.recurrent is None else LinearState(state.recurrent / scale)


@dataclass(frozen=True)
class _Engine:
    """One call's options. Lengths make no difference: padding has the key 0 and the log decay 0, so it changes nothing."""

    scale: float
    normalize: bool
    form: str
    chunk_size: int
    in_torch: bool
    by_fla: bool = False

    @without_autocast
    def run(
        self, inputs: Inputs, state: LinearState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, LinearState | None]:
        q, k, v, log_decay = inputs
        assert q is not None and k is not None and v is not None
        recurrent = None if state is None else state.recurrent
        if not self.in_torch:
            y, recurrent = self._natively(q, k, v, log_decay, recurrent, return_state)
        elif is_unrolled(q):
            options = (self.scale, self.normalize, self.form, self.chunk_size, self.by_fla)
            y, recurrent = _as_operator(q, k, v, log_decay, recurrent, return_state, *options)
        else:
            y, recurrent = self.attend(q, k, v, log_decay, recurrent, return_state)
        return y.to(q.dtype), LinearState(recurrent) if return_state and recurrent is not None else None

    def _size(self, time: int) -> int | None:
        """Tokens that are taken at once; None for all."""
        form = self.form
        if form == "auto":
            form = "parallel" if time <= PARALLEL_UP_TO else "chunked"
        return {"parallel": None, "chunked": self.chunk_size, "recurrent": 1}[form]

    def _natively(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, recurrent: Tensor | None, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        tensors = (None if x is None else x.float() for x in (q, k, v, log_decay, recurrent))
        chunk = {"chunked": self.chunk_size, "recurrent": 1}.get(self.form, native.linear.LONGEST_BLOCK)
        y, _, new_state = native.call("linear", *tensors, self.scale, 1.0, self.normalize, chunk, keep)
        return y, new_state if keep else None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, recurrent: Tensor | None, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.by_fla:
            y, recurrent = fla_core.linear(q, k, v, log_decay, recurrent, self.scale, self.normalize, keep)
            return y.to(torch.promote_types(q.dtype, torch.float32)), recurrent
        B, _, H, _ = q.shape
        G = k.shape[2]
        dtype = torch.promote_types(q.dtype, torch.float32)
        values = v.to(dtype)
        if self.normalize:
            values = torch.cat([values, values.new_ones(*values.shape[:-1], 1)], dim=-1)
        q_NRTK = q.to(dtype).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4).flatten(0, 1) * self.scale
        k_NTK, v_NTW = (x.transpose(1, 2).flatten(0, 1) for x in (k.to(dtype), values))
        a_NT = None if log_decay is None else log_decay.to(dtype).transpose(1, 2).flatten(0, 1)
        state_NKW = None if recurrent is None else recurrent.to(dtype).flatten(0, 1)
        run = _per_channel if a_NT is not None and a_NT.dim() == 3 else _per_head
        y_NRTW, state_NKW = run(q_NRTK, k_NTK, v_NTW, a_NT, state_NKW, self._size(q.shape[1]), keep)
        y = y_NRTW.unflatten(0, (B, G)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        if self.normalize:
            y = safe_divide(y[..., :-1], y[..., -1:])
        return y, None if state_NKW is None else state_NKW.unflatten(0, (B, G))


def sums(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, recurrent: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Σ (q·k) exp(…) v in torch, neither scaled nor divided: a term of power attention beside its Triton kernels."""
    engine = _Engine(1.0, False, "auto", CHUNK, in_torch=True)
    if not is_unrolled(q):
        return engine.attend(q, k, v, log_decay, recurrent, keep)
    y, state = _as_operator(q, k, v, log_decay, recurrent, keep, 1.0, False, "auto", CHUNK, False)
    return y, state if keep else None


def _shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    keep, _, normalize, *_ = rest[2:]
    dtype, (B, T, H, K), (G, V) = torch.promote_types(q.dtype, torch.float32), q.shape, v.shape[2:]
    state = (B, G, K, V + int(normalize)) if keep else (0,)
    return q.new_empty(B, T, H, V, dtype=dtype), q.new_empty(state, dtype=dtype)


@one_operator(
    "linear_in_torch(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? recurrent, bool keep, "
    "float scale, bool normalize, str form, int chunk_size, bool by_fla) -> (Tensor, Tensor)",
    fake=_shapes,
)
def _as_operator(*arguments: Any) -> tuple[Tensor, Tensor | None]:
    *tensors, scale, normalize, form, chunk_size, by_fla = arguments
    return _Engine(scale, normalize, form, chunk_size, in_torch=True, by_fla=by_fla).attend(*tensors)


# --- no decay, or one per head


def _per_head(
    q_NRTK: Tensor,
    k_NTK: Tensor,
    v_NTW: Tensor,
    a_NT: Tensor | None,
    state_NKW: Tensor | None,
    size: int | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    T = k_NTK.shape[1]
    if size is not None and size > 1:
        return chunked((q_NRTK, k_NTK, v_NTW, a_NT, state_NKW, None), Plan(Kernel.of(1), size, T if keep else 0))
    outputs = []
    for now in (slice(start, start + (size or T)) for start in range(0, T, size or T)):
        a_NC = None if a_NT is None else a_NT[:, now]
        y, state_NKW = _pairs(q_NRTK[:, :, now], k_NTK[:, now], v_NTW[:, now], a_NC, state_NKW)
        outputs.append(y)
    return torch.cat(outputs, dim=2), state_NKW if keep else None


def _pairs(
    q_NRCK: Tensor, k_NCK: Tensor, v_NCW: Tensor, a_NC: Tensor | None, state_NKW: Tensor | None
) -> tuple[Tensor, Tensor]:
    """All pairs as a matrix, what the state says, and the state behind the last token."""
    dtype = q_NRCK.dtype
    weight_NRCC = torch.einsum("nrck,njk->nrcj", q_NRCK, k_NCK)
    if a_NC is None:
        y_NRCW = torch.einsum("nrcj,njw->nrcw", weight_NRCC.tril(), v_NCW)
        if state_NKW is None:
            return y_NRCW, k_NCK.transpose(1, 2) @ v_NCW
        return y_NRCW + q_NRCK @ state_NKW[:, None], torch.baddbmm(state_NKW, k_NCK.transpose(1, 2), v_NCW)
    sums_NC = decay.cumulative(a_NC, 1)
    y_NRCW = torch.einsum("nrcj,njw->nrcw", weight_NRCC * decay.between(sums_NC, sums_NC, dtype)[:, None], v_NCW)
    left_NCK = k_NCK * decay.factor(sums_NC[:, -1:] - sums_NC, dtype)[..., None]
    added_NKW = left_NCK.transpose(1, 2) @ v_NCW
    if state_NKW is None:
        return y_NRCW, added_NKW
    read_NRCW = q_NRCK @ state_NKW[:, None] * decay.factor(sums_NC, dtype)[:, None, :, None]
    return y_NRCW + read_NRCW, state_NKW * decay.factor(sums_NC[:, -1:, None], dtype) + added_NKW


# --- one decay per channel


def _per_channel(
    q_NRTK: Tensor,
    k_NTK: Tensor,
    v_NTW: Tensor,
    a_NTK: Tensor | None,
    state_NKW: Tensor | None,
    size: int | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    assert a_NTK is not None
    N, T, K = k_NTK.shape
    if state_NKW is None:
        state_NKW = v_NTW.new_zeros(N, K, v_NTW.shape[2])
    if size is not None and size > 1 and not k_NTK.is_cpu:
        y_NRTW, state_NKW = recomputed(_all_chunks, q_NRTK, k_NTK, v_NTW, a_NTK, state_NKW, min(size, T))
        return y_NRTW, state_NKW if keep else None
    outputs = []
    for now in (slice(start, start + (size or T)) for start in range(0, T, size or T)):
        pieces = (q_NRTK[:, :, now], k_NTK[:, now], v_NTW[:, now], a_NTK[:, now], state_NKW)
        y, state_NKW = recomputed(_chunk, *pieces)
        outputs.append(y)
    return torch.cat(outputs, dim=2), state_NKW if keep else None


def _all_chunks(
    q_NRTK: Tensor, k_NTK: Tensor, v_NTW: Tensor, a_NTK: Tensor, state_NKW: Tensor, C: int
) -> tuple[Tensor, Tensor]:
    """`_chunk` for J chunks at once, where launches cost more than that: the states before them are one product."""
    (N, R, T), W, dtype = q_NRTK.shape[:3], v_NTW.shape[2], q_NRTK.dtype
    extra = -T % C
    k_MCK, v_MCW, a_MCK = (pad(x, (0, 0, 0, extra)).unflatten(1, (-1, C)).flatten(0, 1) for x in (k_NTK, v_NTW, a_NTK))
    q_MRCK = pad(q_NRTK, (0, 0, 0, extra)).unflatten(2, (-1, C)).transpose(1, 2).flatten(0, 1)
    sums_MCK = decay.cumulative(a_MCK, 1)
    ends_NKI = pad(sums_MCK[:, -1].unflatten(0, (N, -1)).cumsum(1).transpose(1, 2), (1, 0))
    left_MCK = k_MCK * decay.factor(sums_MCK[:, -1:] - sums_MCK, dtype)
    added_NJKW = torch.bmm(left_MCK.transpose(1, 2), v_MCW).unflatten(0, (N, -1))
    terms_NKIW = torch.cat([state_NKW[:, None], added_NJKW], dim=1).transpose(1, 2)
    states_NKIW = decay.between(ends_NKI, ends_NKI, dtype) @ terms_NKIW
    states_MKW = states_NKIW[:, :, :-1].transpose(1, 2).flatten(0, 1)
    y_MRCW = torch.einsum("mrck,mkw->mrcw", q_MRCK * decay.factor(sums_MCK, dtype)[:, None], states_MKW)
    y_MRCW = y_MRCW + torch.einsum("mrcj,mjw->mrcw", decay.pairs_by_channel(q_MRCK, k_MCK, sums_MCK), v_MCW)
    y_NRTW = y_MRCW.unflatten(0, (N, -1)).transpose(1, 2).reshape(N, R, T + extra, W)[:, :, :T]
    return y_NRTW, states_NKIW[:, :, -1]


def _chunk(q_NRCK: Tensor, k_NCK: Tensor, v_NCW: Tensor, a_NCK: Tensor, state_NKW: Tensor) -> tuple[Tensor, Tensor]:
    dtype = q_NRCK.dtype
    sums_NCK = decay.cumulative(a_NCK, 1)
    end_N1K = sums_NCK[:, -1:]
    read_NRCW = torch.einsum("nrck,nkw->nrcw", q_NRCK * decay.factor(sums_NCK, dtype)[:, None], state_NKW)
    y_NRCW = read_NRCW + torch.einsum("nrcj,njw->nrcw", decay.pairs_by_channel(q_NRCK, k_NCK, sums_NCK), v_NCW)
    left_NCK = k_NCK * decay.factor(end_N1K - sums_NCK, dtype)
    state_NKW = torch.baddbmm(state_NKW * decay.factor(end_N1K, dtype).transpose(1, 2), left_NCK.transpose(1, 2), v_NCW)
    return y_NRCW, state_NKW
