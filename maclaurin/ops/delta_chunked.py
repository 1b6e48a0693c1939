"""The delta rule in chunks: linear time, and memory that does not grow with T, forward and backward.

A CPU takes one chunk after the other; where launches cost more than that, all but the state is computed at once
(`delta_batched.py`).

A token reads the state twice, with its key to find what is stored there and with its query for the output. Keys and
queries are therefore readers of one kind. With L the sum of log decay inside a chunk, φ the features, f(x·y) = φ(x)·φ(y),
S the state at its start, and u_j = β_j e_j what token j writes:

    1. e_i = v_i - exp(L_i) Sᵀφ(k_i) - Σ_{j<i}  f(k_i·k_j) exp(L_i - L_j) u_j         a unit triangular system in e
    2. y_i =       exp(L_i) Sᵀφ(q_i) + Σ_{j<=i} f(q_i·k_j) exp(L_i - L_j) u_j
    3. S'  = exp(L_C) S + Σ_j exp(L_C - L_j) φ(k_j) u_jᵀ

Products of scores stand for all pairs inside a chunk, so features exist only beside the state, a chunk at a time.

The backward keeps no states. Gradients by what was written need no S, so one walk backwards carries dS; then one walk
forwards rebuilds S from the errors e, which were kept, and gives the gradients by what was read:

    4. w_j = Σ_{i>=j} f(q_i·k_j) exp(L_i - L_j) dy_i + exp(L_C - L_j) dS'ᵀφ(k_j) - Σ_{i>j} f(k_i·k_j) exp(L_i - L_j) β_i w_i
       dv = β w,  dβ = w·e                                          w = du: the system of step 1, transposed
    5. dS  = exp(L_C) dS' + Σ_i exp(L_i) (φ(q_i) dy_iᵀ - φ(k_i) dv_iᵀ),     dφ(k_j) = exp(L_C - L_j) dS' u_j
    6. dφ(q_i) = exp(L_i) S dy_i,     dφ(k_i) = -exp(L_i) S dv_i

and the gradient of the decay is that of power attention: what readers receive less what writers give is
y·dy - (v - e)·dv - u·w = y·dy - v·dv, so da_u = Σ_{t>=u} (y_t·dy_t - v_t·dv_t) + <S_end, dS_end>.
"""

# N heads of the batch, T time, C chunk, K key channels, F monomials, V value channels, R query heads per key-value head,
# X = 1+R readers: the key, then the queries; Q = X·C rows, reader by reader

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from maclaurin.ops import decay, delta_batched
from maclaurin.ops.chunks import Chunk, Found, Function, Plan, grad_of_decay, initial_state

# queries, keys, values, shares of the error, log decays, state: heads first
Heads = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def chunked(heads: Heads, plan: Plan) -> Found:
    """Outputs (N,R,T,V), and the state (N,F,V) after the last token, both states in the basis of plain monomials.

    heads: q (N,R,T,K), k (N,T,K), v (N,T,V), beta (N,T), log decay (N,T) and state (N,F,V); the last two may be None.
    """
    q_NRTK = heads[0]
    if not q_NRTK.is_cpu:
        return delta_batched.chunked(heads, plan)
    return _chunked.some_heads_at_a_time(heads, plan, (1 + q_NRTK.shape[1]) * min(plan.chunk, q_NRTK.shape[2]))


def _gradients(saved: Any, dy_NRTV: Tensor, d_result_NFV: Tensor | None, plan: Plan) -> tuple[Tensor | None, ...]:
    *heads, y_NRTV, result_NFV, error_NTV = saved
    _, _, v_NTV, beta_NT, log_decay_NT, state_NFV = heads
    u_NTV = beta_NT[..., None] * error_NTV
    dq_NRTK, dk_NTK, w_NTV, dstate = _by_writing(heads, u_NTV, dy_NRTV, d_result_NFV, plan)
    dv_NTV = beta_NT[..., None] * w_NTV
    _add_reading(heads, u_NTV, dv_NTV, dy_NRTV, dq_NRTK, dk_NTK, plan)
    d_decay_NT = None
    if log_decay_NT is not None:
        pairs = (v_NTV, dv_NTV), (y_NRTV, dy_NRTV), (result_NFV, d_result_NFV)
        d_decay_NT = grad_of_decay(log_decay_NT, *pairs, plan)
    d_beta_NT = (w_NTV * error_NTV).sum(-1)
    return dq_NRTK, dk_NTK, dv_NTV, d_beta_NT, d_decay_NT, None if state_NFV is None else dstate


def _by_writing(
    heads: Heads, u_NTV: Tensor, dy_NRTV: Tensor, d_result_NFV: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq and dk but for what readers of the state give, w = du, and dS: backwards, with dS, steps 4 and 5."""
    q_NRTK, k_NTK, v_NTV, beta_NT, log_decay_NT, state_NFV = heads
    T, K = k_NTK.shape[1:]
    c_F1 = plan.kernel.feature_weights(K, k_NTK)[:, None]
    dq_NRTK, dk_NTK, w_NTV = torch.empty_like(q_NRTK), torch.empty_like(k_NTK), torch.empty_like(v_NTV)
    dstate, carried = initial_state(d_result_NFV, k_NTK, v_NTV, plan.kernel), d_result_NFV is not None
    for start in reversed(range(0, T, plan.chunk)):
        chunk = _chunk(q_NRTK, k_NTK, v_NTV, log_decay_NT, plan, start)
        now, C = chunk.keys, chunk.k_NCK.shape[1]
        score_NXCC, between = chunk.scores()
        weight_NXCC = plan.kernel(score_NXCC) * between
        dy_NRCV, u_NCV = dy_NRTV[:, :, now], u_NTV[:, now]
        du_NCV = torch.bmm(weight_NXCC[:, 1:].flatten(1, 2).transpose(1, 2), dy_NRCV.flatten(1, 2))
        reads = start > 0 or state_NFV is not None
        m_NFQ = chunk.monomials_of_q() if reads or carried else None
        if m_NFQ is not None and carried:
            du_NCV += chunk.to_end(torch.bmm(m_NFQ[:, :, :C].transpose(1, 2), dstate))
        system_NCC = (beta_NT[:, now, None] * weight_NXCC[:, 0]).transpose(1, 2)
        w_NTV[:, now] = solve_triangular(system_NCC, du_NCV, upper=True, unitriangular=True)

        received_NQV = _received(beta_NT[:, now, None] * w_NTV[:, now], dy_NRCV)
        d_weight_NXCC = torch.bmm(received_NQV, u_NCV.transpose(1, 2)).view_as(score_NXCC) * between
        d_weight_NXCC[:, 0].diagonal(dim1=1, dim2=2).zero_()  # a key meets only those before it
        d_score_NQC = (d_weight_NXCC * plan.kernel.derivative(score_NXCC)).flatten(1, 2)
        d_readers_NXCK = torch.bmm(d_score_NQC, chunk.k_NCK).unflatten(1, (-1, C))
        dq_NRTK[:, :, now] = d_readers_NXCK[:, 1:]
        dk_NTK[:, now] = torch.baddbmm(d_readers_NXCK[:, 0], d_score_NQC.transpose(1, 2), chunk.rows_of_q())
        if carried:
            dk_NTK[:, now] += chunk.grad_k(torch.bmm(dstate, chunk.to_end(u_NCV).transpose(1, 2)))
            dstate = chunk.across(dstate)
        if m_NFQ is not None and reads:
            dstate, carried = torch.addcmul(dstate, c_F1, torch.bmm(m_NFQ, chunk.from_start(received_NQV))), True
    return dq_NRTK, dk_NTK, w_NTV, dstate


def _add_reading(
    heads: Heads, u_NTV: Tensor, dv_NTV: Tensor, dy_NRTV: Tensor, dq_NRTK: Tensor, dk_NTK: Tensor, plan: Plan
) -> None:
    """To dq and dk what readers of the state give: forwards, with the state built again, step 6."""
    q_NRTK, k_NTK, v_NTV, _, log_decay_NT, state_NFV = heads
    T, K = k_NTK.shape[1:]
    c_F1 = plan.kernel.feature_weights(K, k_NTK)[:, None]
    state, empty = initial_state(state_NFV, k_NTK, v_NTV, plan.kernel), state_NFV is None
    for start in range(0, T, plan.chunk):
        chunk = _chunk(q_NRTK, k_NTK, v_NTV, log_decay_NT, plan, start)
        now, C = chunk.keys, chunk.k_NCK.shape[1]
        if not empty:
            received_NQV = chunk.from_start(_received(dv_NTV[:, now], dy_NRTV[:, :, now]))
            d_m_NFQ = torch.bmm(c_F1 * state, received_NQV.transpose(1, 2))
            d_readers_NXCK = chunk.grad_q(d_m_NFQ).unflatten(1, (-1, C))
            dk_NTK[:, now] += d_readers_NXCK[:, 0]
            dq_NRTK[:, :, now] += d_readers_NXCK[:, 1:]
        if now.stop < T:
            state = torch.baddbmm(chunk.across(state), chunk.monomials_of_k(), chunk.to_end(u_NTV[:, now]))
            empty = False


def _outputs(heads: Heads, plan: Plan) -> tuple[Tensor, Tensor | None, Tensor]:
    """Those of `chunked`, and the errors e (N,T,V)."""
    q_NRTK, k_NTK, v_NTV, beta_NT, log_decay_NT, state_NFV = heads
    R, T, K = q_NRTK.shape[1:]
    state, empty = initial_state(state_NFV, k_NTK, v_NTV, plan.kernel), state_NFV is None
    c_F1 = plan.kernel.feature_weights(K, k_NTK)[:, None]
    outputs, errors = [], []
    for start in range(0, T, plan.chunk):
        chunk = _chunk(q_NRTK, k_NTK, v_NTV, log_decay_NT, plan, start)
        now, C = chunk.keys, chunk.k_NCK.shape[1]
        score_NXCC, between = chunk.scores()
        weight_NXCC = plan.kernel(score_NXCC) * between
        m_NFQ = None if empty else chunk.monomials_of_q()
        read_NQV, unexplained_NCV = None, chunk.v_NCW
        if m_NFQ is not None:
            read_NQV = chunk.from_start(torch.bmm(m_NFQ.transpose(1, 2), c_F1 * state))
            unexplained_NCV = chunk.v_NCW - read_NQV[:, :C]
        system_NCC = weight_NXCC[:, 0] * beta_NT[:, None, now]
        error_NCV = solve_triangular(system_NCC, unexplained_NCV, upper=False, unitriangular=True)
        u_NCV = beta_NT[:, now, None] * error_NCV
        y_NQV = torch.bmm(weight_NXCC[:, 1:].flatten(1, 2), u_NCV)
        if read_NQV is not None:
            y_NQV = y_NQV + read_NQV[:, C:]
        outputs.append(y_NQV.unflatten(1, (R, C)))
        errors.append(error_NCV)
        if now.stop < T or plan.folded:
            m_NFC = chunk.monomials_of_k() if m_NFQ is None else m_NFQ[:, :, :C]
            state, empty = torch.baddbmm(chunk.across(state), m_NFC, chunk.to_end(u_NCV)), False
    return torch.cat(outputs, dim=2), state if plan.folded else None, torch.cat(errors, dim=1)


_chunked = Function(_outputs, _gradients)


def _chunk(q_NRTK: Tensor, k_NTK: Tensor, v_NTV: Tensor, log_decay_NT: Tensor | None, plan: Plan, start: int) -> Chunk:
    """The chunk that begins at `start`; what it calls queries are all readers, the key first."""
    now = slice(start, min(start + plan.chunk, k_NTK.shape[1]))
    readers_NXCK = torch.cat([k_NTK[:, None, now], q_NRTK[:, :, now]], dim=1)
    sums_NC = None if log_decay_NT is None else decay.cumulative(log_decay_NT[:, now], 1)
    X = readers_NXCK.shape[1]
    return Chunk(plan, readers_NXCK.flatten(1, 2), k_NTK[:, now], v_NTV[:, now], sums_NC, None, now, now, X)


def _received(dv_NCV: Tensor, dy_NRCV: Tensor) -> Tensor:
    """The gradient by what each reader read, (N,Q,V): what the key recalled was taken from the value."""
    return torch.cat([-dv_NCV[:, None], dy_NRCV], dim=1).flatten(1, 2)
