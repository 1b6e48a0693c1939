"""The delta rule: a state that corrects what it holds under a key instead of adding to it.

    S_t = exp(a_t)·S_{t-1} + β_t φ(k_t) (v_t - (exp(a_t)·S_{t-1})ᵀφ(k_t))ᵀ
        = (I - β_t φ(k_t)φ(k_t)ᵀ) exp(a_t)·S_{t-1} + β_t φ(k_t) v_tᵀ
    y_t = S_tᵀφ(scale·q_t)

The state decays, then the share β of what it holds under the key is replaced by the value. φ is the identity (order 1),
or the symmetric power with φ(x)·φ(y) = (x·y)^order. The transition I - βφφᵀ has the eigenvalues 1 and 1 - β|k|^(2·order):
with keys of unit length and 0 <= β <= 2 nothing can grow. At β = 1 a key is overwritten, above it one eigenvalue is
negative. With longer keys the recurrence itself may grow without bound, in every form.

A decay is one number per head, or at order 1 one per key channel, which is a row of the state (Kimi Delta Attention).

Padding has the key, value, β and log decay zero: it writes nothing and changes nothing.
"""

# B batch, T time, H heads, G key-value heads, R = H/G, N = B·G, X = 1+R, K key channels, F features, V value channels

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one
from maclaurin.ops import checks, decay, delta_by_channel, delta_chunked, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, without_autocast
from maclaurin.ops.backends import by_fla, note, reason_for_torch
from maclaurin.ops.chunks import Plan
from maclaurin.ops.features import Kernel, monomials
from maclaurin.ops.gpu import fla_core
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import DeltaState, State
from maclaurin.ops.transforms import is_transformed

CHUNKS = {1: 64}  # by order
CHUNK_OF_HIGHER_ORDERS = 256  # a larger state is better read and written by more tokens at a time


@with_options
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    *,
    order: int = 1,
    scale: float | None = None,
    state: State | None = None,
    chunk_size: int | None = None,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, DeltaState | None]:
    """q (B,T,H,K), k (B,T,G,K), v (B,T,G,V), beta and log_decay (B,T,G or H), log_decay <= 0 -> y (B,T,H,V), state.

    log_decay of order 1 may also be (B,T,G or H,K), for a decay per key channel. Keys should have at most unit length, see
    above; the op takes them as they are. scale is 1/√K unless given, and is taken to the power `order` with the score.
    Ragged batches and forms as in `linear_attention`: "parallel" is one chunk of all tokens. The state is (B,G,F,V), or
    (B,H,F,V) where beta or log_decay have an entry per query head.
    """
    call = Options.of(delta_rule, options)
    checks.heads(q, k, v)
    at_least_one("order", order)
    checks.log_decay(log_decay, q, k, per_channel=order == 1)
    checks.beta(beta, q, k)
    call.check()
    checks.scale(scale)
    if chunk_size is None:
        chunk_size = CHUNKS.get(order, CHUNK_OF_HIGHER_ORDERS)
    at_least_one("chunk_size", chunk_size)
    kernel = Kernel.of(order)
    heads = max(x.shape[2] for x in (k, beta, log_decay) if x is not None)
    k, v, beta = (repeat_heads(x, heads) for x in (k, v, beta))
    log_decay = None if log_decay is None else repeat_heads(log_decay, heads)
    initial = checks.sound_state(state, DeltaState, q)
    state_shape = (heads, kernel.feature_count(k.shape[3]), v.shape[3])
    if initial is not None and initial.recurrent.shape[1:] != state_shape:
        raise ValueError(
            f"state must be {state_shape} (heads, features, value channels) per sequence, "
            f"got {tuple(initial.recurrent.shape[1:])}"
        )
    per_channel = log_decay is not None and log_decay.dim() == 4
    form = "recurrent" if q.shape[1] == 1 else "chunked" if call.form == "auto" else call.form
    fla = order == 1 and not per_channel and form == "chunked" and by_fla(call.backend, q)
    no_kernel = None if order <= 2 else "order 1 or 2"
    reason = reason_for_torch(call.backend, q, torch.promote_types(q.dtype, torch.float32), no_kernel=no_kernel)
    note("delta_rule", form, reason, q, fla=fla)
    at_once = call.at_once(q.shape[1], chunk_size)
    rule = _Rule(order, default_scale(scale, q), form == "recurrent", at_once, fla, natively=reason is None)
    return call.causally(rule.run, (q, k, v, beta, log_decay), initial)


@dataclass(frozen=True)
class _Rule:
    """One call's mechanism and form. Lengths make no difference: padding is neutral."""

    order: int
    scale: float
    recurrent: bool
    chunk_size: int
    by_fla: bool
    natively: bool

    @without_autocast
    def run(
        self, inputs: Inputs, state: DeltaState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, DeltaState | None]:
        q = inputs[0]
        assert q is not None
        start = None if state is None else state.recurrent
        if self.natively:
            tensors = (None if x is None else x.float() for x in (*inputs, start))
            y, _, end = native.call("delta", *tensors, self.scale, self.order, self.chunk_size, return_state)
            return y.to(q.dtype), DeltaState(end) if return_state else None
        attend: Callable[..., tuple[Tensor, Any]] = _as_operator if is_unrolled(q) else _attend
        y, end = attend(*inputs, start, self.order, self.scale, self.recurrent, self.chunk_size, self.by_fla, return_state)
        return y, DeltaState(end) if return_state else None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    start: Tensor | None,
    order: int,
    scale: float,
    recurrent: bool,
    chunk_size: int,
    by_fla: bool,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Those of `delta_rule`, k, v, beta and log_decay with the same heads; the states are (B,G,F,V)."""
    if by_fla:
        return fla_core.delta(q, k, v, beta, log_decay, start, scale, return_state)
    kernel = Kernel.of(order)
    B, _, H, _ = q.shape
    G = k.shape[2]
    given_dtype, dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q = q.to(dtype) if scale == 1 else q.to(dtype) * scale
    q_NRTK = q.unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    k_NTK, v_NTV, beta_NT = (x.to(dtype).transpose(1, 2).flatten(0, 1) for x in (k, v, beta))
    a_NT = None if log_decay is None else log_decay.transpose(1, 2).flatten(0, 1)
    state_NFV = None if start is None else start.to(dtype).flatten(0, 1)
    tokens = (q_NRTK, k_NTK, v_NTV, beta_NT, a_NT)
    if recurrent:
        y_NRTV, state_NFV = _recurrent(*tokens, state_NFV, kernel)
    elif a_NT is not None and a_NT.dim() == 3:
        y_NRTV, state_NFV = delta_by_channel.chunked((*tokens, state_NFV), chunk_size)
    else:
        # the state holds φ(k); chunks compute with plain monomials, which the roots turn into φ
        root_F1 = kernel.feature_weights(k.shape[3], v_NTV)[:, None].sqrt()
        start_NFV = None if state_NFV is None else state_NFV / root_F1
        T = k.shape[1]
        plan = Plan(kernel, min(chunk_size, T), folded=T if return_state else 0)
        y_NRTV, end_NFV = delta_chunked.chunked((*tokens, start_NFV), plan)
        state_NFV = None if end_NFV is None else end_NFV * root_F1
    y = y_NRTV.unflatten(0, (B, G)).permute(0, 3, 1, 2, 4).flatten(2, 3).to(given_dtype)
    if not return_state:
        return y, None
    assert state_NFV is not None
    return y, state_NFV.unflatten(0, (B, G))


def _shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    order, *_, return_state = rest[3:]
    dtype, (B, T, H, K), (G, V) = torch.promote_types(q.dtype, torch.float32), q.shape, v.shape[2:]
    state = (B, G, Kernel.of(order).feature_count(K), V) if return_state else (0,)
    return q.new_empty(B, T, H, V), q.new_empty(state, dtype=dtype)


_as_operator = one_operator(
    "delta_rule(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? log_decay, Tensor? start, "
    "int order, float scale, bool recurrent, SymInt chunk_size, bool by_fla, bool return_state) -> (Tensor, Tensor)",
    fake=_shapes,
)(_attend)


def _recurrent(
    q_NRTK: Tensor,
    k_NTK: Tensor,
    v_NTV: Tensor,
    beta_NT: Tensor,
    a_NT: Tensor | None,
    state_NFV: Tensor | None,
    kernel: Kernel,
) -> tuple[Tensor, Tensor]:
    """Token by token. Key and queries read the state at once; what the token itself writes, a query sees by its score.

    The log decays are (N,T), or (N,T,K). Autograd keeps the state of every token here: this form is for decoding.
    """
    if state_NFV is None:
        state_NFV = v_NTV.new_zeros(v_NTV.shape[0], kernel.feature_count(k_NTK.shape[2]), v_NTV.shape[2])
    root_F1 = kernel.feature_weights(k_NTK.shape[2], v_NTV)[:, None].sqrt()
    # in place, because a second copy of a large state is slow; under vmap it may be that of all examples
    add_product = torch.baddbmm if is_transformed() else Tensor.baddbmm_
    outputs = []
    for t in range(v_NTV.shape[1]):
        q_NRK, k_N1K, beta_N11 = q_NRTK[:, :, t], k_NTK[:, t, None], beta_NT[:, t, None, None]
        readers_NKX = torch.cat([k_N1K, q_NRK], dim=1).transpose(1, 2)
        features_NFX = monomials(readers_NKX, kernel.orders) * root_F1
        decayed_NFX, kept_NFV = features_NFX, None
        if a_NT is not None:
            left = decay.factor(a_NT[:, t], v_NTV.dtype).reshape(len(state_NFV), -1, 1)  # (N,1,1) or (N,K,1)
            decayed_NFX, kept_NFV = features_NFX * left, state_NFV * left
        read_NXV = torch.bmm(decayed_NFX.transpose(1, 2), state_NFV)
        u_N1V = beta_N11 * (v_NTV[:, t, None] - read_NXV[:, :1])
        own_NR1 = kernel.value(torch.bmm(q_NRK, k_N1K.transpose(1, 2)))
        outputs.append(torch.baddbmm(read_NXV[:, 1:], own_NR1, u_N1V))
        state_NFV = add_product(state_NFV.clone() if kept_NFV is None else kept_NFV, features_NFX[:, :, :1], u_N1V)
    return torch.stack(outputs, dim=2), state_NFV
