"""Power attention in chunks: linear time, and memory that does not grow with T, forward and backward.

A CPU takes one chunk after the other; where launches cost more than that, all chunks are taken at once (`power_batched.py`).

With L the sum of log decay inside a chunk, m(x) the monomials of x, c their weights, and S the state at its start:

    1. y_i  = exp(L_i) m(q_i)ᵀ (c ⊙ S) + Σ_{j<=i} f(q_i·k_j) exp(L_i - L_j) v_j          the state, then the chunk itself
    2. S'   = exp(L_C) S + Σ_j exp(L_C - L_j) m(k_j) v_jᵀ

The backward stores nothing that the inputs do not already say. One walk forward rebuilds S and gives what depends on it
(the gradient of q), one walk backward carries dS and gives the rest:

    3. dm(q_i) = exp(L_i) (c ⊙ S) dy_i
    4. dm(k_j) = exp(L_C - L_j) dS' v_j,     dv_j = exp(L_C - L_j) dS'ᵀ m(k_j)
    5. dS      = exp(L_C) dS' + Σ_i exp(L_i) (c ⊙ m(q_i)) dy_iᵀ

and the gradient of the decay needs no pass at all: a pair (i, j) depends on a_u exactly if j < u <= i, so

    6. da_u = Σ_{t>=u} (y_t·dy_t - v_t·dv_t) + <S_end, dS_end>
"""

# N heads of the batch, R query heads per key-value head, T queries, S keys (the queries are the last T of them),
# C chunk, K key channels, F monomials, W value channels (with the column of ones, if the output is normalised)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import power_batched
from maclaurin.ops.chunks import Chunk, Found, Function, Heads, Plan, grad_of_decay, initial_state
from maclaurin.ops.features import Kernel
from maclaurin.ops.rounding import above_rounding

CHUNK = 256


def chunked(heads: Heads, plan: Plan) -> Found:
    """Unnormalised outputs (N,R,T,W), and the state (N,F,W) after `plan.folded` keys, in the basis m(k).

    heads: q (N,R,T,K), k (N,S,K), v (N,S,W), log decay (N,S), state (N,F,W), and one row per head that weighs the orders of
    the kernel; the last three may be None. Where `plan.folded` is 0 there is no new state: None.
    """
    q_NRTK, k_NSK = heads[:2]
    if not q_NRTK.is_cpu:
        return power_batched.chunked(heads, plan)
    return _chunked.some_heads_at_a_time(heads, plan, q_NRTK.shape[1] * min(plan.chunk, k_NSK.shape[1]))


def _gradients(saved: Any, dy_NRTW: Tensor, d_result_NFW: Tensor | None, plan: Plan) -> tuple[Tensor | None, ...]:
    q_NRTK, k_NSK, v_NSW, log_decay_NS, state_NFW, weights_NO, y_NRTW, result_NFW, used_NRT1 = saved
    chunks = Chunk.walk((q_NRTK, k_NSK, v_NSW, log_decay_NS, weights_NO), plan)
    c_NF1 = plan.kernel.monomial_weights(k_NSK, weights_NO)
    dq_NRTK, dk_NSK, dv_NSW = torch.zeros_like(q_NRTK), torch.zeros_like(k_NSK), torch.zeros_like(v_NSW)
    d_weights_NO = None if weights_NO is None else torch.zeros_like(weights_NO)

    # forwards, with the state: steps 1-3
    state = initial_state(state_NFW, k_NSK, v_NSW, plan.kernel)
    for position, chunk in enumerate(chunks):
        if chunk.q_NQK is not None:
            dy_NQW = dy_NRTW[:, :, chunk.queries].flatten(1, 2)
            score, between = chunk.scores()
            dw_NRCC = torch.bmm(dy_NQW, chunk.v_NCW.transpose(1, 2)).view_as(score) * between
            weight_NQC = (plan.kernel(score, chunk.order_weights()) * between).flatten(1, 2)
            dscore_NQC = (dw_NRCC * plan.kernel.derivative(score, chunk.order_weights())).flatten(1, 2)
            dq_NQK = torch.bmm(dscore_NQC, chunk.k_NCK)
            dk_NSK[:, chunk.keys] += torch.bmm(dscore_NQC.transpose(1, 2), chunk.q_NQK)
            dv_NSW[:, chunk.keys] += torch.bmm(weight_NQC.transpose(1, 2), dy_NQW)
            if d_weights_NO is not None:
                d_weights_NO += _grad_of_weights(plan.kernel, score, dw_NRCC)
            if position or state_NFW is not None:
                decayed_NQW = chunk.of_state(dy_NRTW, used_NRT1)
                dq_NQK += chunk.grad_q(torch.bmm(c_NF1 * state, decayed_NQW.transpose(1, 2)))
                if d_weights_NO is not None:
                    read_NF = (torch.bmm(chunk.monomials_of_q(), decayed_NQW) * state).sum(-1)
                    d_weights_NO += _sum_by_order(plan.kernel, read_NF, k_NSK.shape[-1])
            dq_NRTK[:, :, chunk.queries] = dq_NQK.unflatten(1, (chunk.groups, -1))
        if chunk.keys.stop < k_NSK.shape[1]:
            state = torch.baddbmm(chunk.across(state), chunk.monomials_of_k(), chunk.to_end(chunk.v_NCW))

    # backwards, with the gradient of the state: steps 4 and 5
    dstate = torch.zeros_like(state)
    carried = False
    for chunk in reversed(chunks):
        if chunk.keys.stop == plan.folded and d_result_NFW is not None:
            dstate, carried = dstate + d_result_NFW, True
        if carried:
            dm_NFC = torch.bmm(dstate, chunk.to_end(chunk.v_NCW).transpose(1, 2))
            dk_NSK[:, chunk.keys] += chunk.grad_k(dm_NFC)
            dv_NSW[:, chunk.keys] += chunk.to_end(torch.bmm(chunk.monomials_of_k().transpose(1, 2), dstate))
            dstate = chunk.across(dstate)
        if chunk.q_NQK is not None and (chunk.keys.start > 0 or state_NFW is not None):
            dy_NQW = chunk.of_state(dy_NRTW, used_NRT1)
            dstate = torch.addcmul(dstate, c_NF1, torch.bmm(chunk.monomials_of_q(), dy_NQW))
            carried = True

    d_decay_NS = None
    if log_decay_NS is not None:  # step 6
        pairs = (v_NSW, dv_NSW), (y_NRTW, dy_NRTW), (result_NFW, d_result_NFW)
        d_decay_NS = grad_of_decay(log_decay_NS, *pairs, plan)
    return dq_NRTK, dk_NSK, dv_NSW, d_decay_NS, None if state_NFW is None else dstate, d_weights_NO


def _outputs(heads: Heads, plan: Plan) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Those of `chunked`, and which queries (N,R,T,1) use what they read from the state."""
    q_NRTK, k_NSK, v_NSW, log_decay_NS, state_NFW, weights_NO = heads
    state, empty, result = initial_state(state_NFW, k_NSK, v_NSW, plan.kernel), state_NFW is None, None
    outputs, used = [], []
    c_NF1 = plan.kernel.monomial_weights(k_NSK, weights_NO)
    for chunk in Chunk.walk((q_NRTK, k_NSK, v_NSW, log_decay_NS, weights_NO), plan):
        if chunk.q_NQK is not None:
            score, between = chunk.scores()
            weight_NQC = (plan.kernel(score, chunk.order_weights()) * between).flatten(1, 2)
            y_NQW = torch.bmm(weight_NQC, chunk.v_NCW)
            used_NQ1 = None
            if not empty:
                read_NQW = torch.bmm(chunk.monomials_of_q().transpose(1, 2), c_NF1 * state)
                if plan.guarded:
                    used_NQ1 = above_rounding(read_NQW[..., -1:], chunk.q_NQK, state[..., -1], plan.kernel, weights_NO)
                    read_NQW = read_NQW * used_NQ1
                y_NQW = y_NQW + chunk.from_start(read_NQW)
            outputs.append(y_NQW.unflatten(1, (chunk.groups, -1)))
            if plan.guarded:
                used_NQ1 = torch.ones_like(y_NQW[..., :1], dtype=torch.bool) if used_NQ1 is None else used_NQ1
                used.append(used_NQ1.unflatten(1, (chunk.groups, -1)))
        if chunk.keys.stop < k_NSK.shape[1] or chunk.keys.stop <= plan.folded:
            state = torch.baddbmm(chunk.across(state), chunk.monomials_of_k(), chunk.to_end(chunk.v_NCW))
            empty = False
        if chunk.keys.stop == plan.folded:
            result = state
    if not outputs:
        outputs.append(v_NSW.new_empty(*q_NRTK.shape[:3], v_NSW.shape[2]))
    return torch.cat(outputs, dim=2), result, torch.cat(used, dim=2) if used else None


_chunked = Function(_outputs, _gradients)


def _grad_of_weights(kernel: Kernel, score: Tensor, dw: Tensor) -> Tensor:
    terms = [c * (dw * score**n).sum((1, 2, 3)) for n, c in zip(kernel.orders, kernel.coefficients, strict=True)]
    return torch.stack(terms, dim=1)


def _sum_by_order(kernel: Kernel, x_NF: Tensor, dim: int) -> Tensor:
    parts = (kernel.feature_weights(dim, x_NF) * x_NF).split(kernel.feature_counts(dim), dim=1)
    return torch.stack([part.sum(1) for part in parts], dim=1)
