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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import decay, power_batched
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.features import Kernel, contract, monomials
from maclaurin.ops.rounding import above_rounding
from maclaurin.ops.transforms import is_transformed, twice_differentiable

CHUNK = 256
EXPANSION_BYTES = 64 * 2**20  # how much of m(x) may exist at a time; heads beyond it wait


@dataclass(frozen=True)
class Plan:
    """What to compute, apart from the tensors."""

    kernel: Kernel
    chunk: int
    folded: int  # the state is returned as it stands after this many keys
    guarded: bool = False  # averages: what the state says within its rounding error is not used

    def spans(self, S: int, T: int) -> Iterator[tuple[int, int]]:
        """Chunks of keys; one ends where the queries begin, and one where the returned state is taken."""
        cuts = sorted({0, S - T, self.folded, S})
        for begin, end in pairwise(cuts):
            for start in range(begin, end, self.chunk):
                yield start, min(start + self.chunk, end)


def chunked(
    q_NRTK: Tensor,
    k_NSK: Tensor,
    v_NSW: Tensor,
    log_decay_NS: Tensor | None,
    state_NFW: Tensor | None,
    weights_NO: Tensor | None,
    plan: Plan,
) -> tuple[Tensor, Tensor | None]:
    """Unnormalised outputs (N,R,T,W), and the state (N,F,W) after `plan.folded` keys, in the basis m(k).

    Where `plan.folded` is 0 there is no new state: None. `weights_NO` weighs the orders of the kernel, one row per head.
    """
    inputs = (q_NRTK, k_NSK, v_NSW, log_decay_NS, state_NFW, weights_NO)
    if not q_NRTK.is_cpu:
        return power_batched.chunked(*inputs, plan.kernel, plan.chunk, plan.folded, plan.guarded)
    rows = q_NRTK.shape[1] * min(plan.chunk, k_NSK.shape[1])
    return some_heads_at_a_time(_Chunked, inputs, plan, rows)


def some_heads_at_a_time(
    function: type[Chunked], inputs: tuple[Tensor | None, ...], plan: Plan, rows: int
) -> tuple[Tensor, Tensor | None]:
    """(y, state) = function(*inputs, plan), for as many heads at a time as m(x) of `rows` tokens each has room for."""
    q_NRTK = inputs[0]
    assert q_NRTK is not None
    per_head = plan.kernel.feature_count(q_NRTK.shape[-1]) * rows * q_NRTK.element_size()
    heads = max(1, EXPANSION_BYTES // per_head)
    run: Callable[..., Any] = function.ordinary if is_transformed() else function.apply
    pieces = [
        run(*(None if x is None else x[start : start + heads] for x in inputs), plan)
        for start in range(0, q_NRTK.shape[0], heads)
    ]
    if len(pieces) == 1:
        return pieces[0][0], pieces[0][1]
    y_NRTW = torch.cat([y for y, _ in pieces])
    return y_NRTW, torch.cat([state for _, state in pieces]) if plan.folded else None


class Chunked(torch.autograd.Function):
    """A function of tensors and a `Plan`, with a backward that keeps no states."""

    @staticmethod
    def ordinary(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        """The same in ordinary operators, for what does not see into a backward."""
        raise NotImplementedError


@dataclass
class Chunk:
    """One chunk's slice of every input, its decays, and the products that several steps need (`delta_chunked`'s, too)."""

    plan: Plan
    q_NQK: Tensor | None  # Q = R·C rows, query head by query head; None for keys before the first query
    k_NCK: Tensor
    v_NCW: Tensor
    sums_NC: Tensor | None
    weights_NO: Tensor | None
    queries: slice
    keys: slice
    groups: int

    @staticmethod
    def walk(inputs: tuple[Tensor | None, ...], plan: Plan) -> list[Chunk]:
        q_NRTK, k_NSK, v_NSW, log_decay_NS, weights_NO = inputs
        assert q_NRTK is not None and k_NSK is not None and v_NSW is not None
        T, S = q_NRTK.shape[2], k_NSK.shape[1]
        chunks = []
        for start, end in plan.spans(S, T):
            queries, keys = slice(max(start - (S - T), 0), max(end - (S - T), 0)), slice(start, end)
            chunks.append(
                Chunk(
                    plan,
                    None if end <= S - T else q_NRTK[:, :, queries].flatten(1, 2),
                    k_NSK[:, keys],
                    v_NSW[:, keys],
                    None if log_decay_NS is None else decay.cumulative(log_decay_NS[:, keys], 1),
                    weights_NO,
                    queries,
                    keys,
                    q_NRTK.shape[1],
                )
            )
        return chunks

    def monomials_of_k(self) -> Tensor:
        return monomials(self.k_NCK.transpose(1, 2).contiguous(), self.plan.kernel.orders)

    def monomials_of_q(self) -> Tensor:
        return monomials(self.rows_of_q().transpose(1, 2).contiguous(), self.plan.kernel.orders)

    def grad_q(self, grad_NFQ: Tensor) -> Tensor:
        return contract(self.rows_of_q().transpose(1, 2).contiguous(), grad_NFQ, self.plan.kernel.orders).transpose(1, 2)

    def grad_k(self, grad_NFC: Tensor) -> Tensor:
        return contract(self.k_NCK.transpose(1, 2).contiguous(), grad_NFC, self.plan.kernel.orders).transpose(1, 2)

    def from_start(self, x_NQW: Tensor) -> Tensor:
        """x times exp(L_i): what is left of the state when the query comes."""
        if self.sums_NC is None:
            return x_NQW
        return x_NQW * decay.factor(self.sums_NC, x_NQW.dtype).repeat(1, self.groups)[..., None]

    def of_state(self, dy_NRTW: Tensor, used_NRT1: Tensor | None) -> Tensor:
        """The gradient of what these queries read from the state."""
        dy_NRCW = dy_NRTW[:, :, self.queries]
        if used_NRT1 is not None:
            dy_NRCW = dy_NRCW * used_NRT1[:, :, self.queries]
        return self.from_start(dy_NRCW.flatten(1, 2))

    def to_end(self, x_NCW: Tensor) -> Tensor:
        """x times exp(L_C - L_j): what is left of a key at the end of the chunk."""
        if self.sums_NC is None:
            return x_NCW
        return x_NCW * decay.factor(self.sums_NC[:, -1:] - self.sums_NC, x_NCW.dtype)[..., None]

    def across(self, state_NFW: Tensor) -> Tensor:
        """state times exp(L_C)."""
        if self.sums_NC is None:
            return state_NFW
        return state_NFW * decay.factor(self.sums_NC[:, -1], state_NFW.dtype)[:, None, None]

    def scores(self) -> tuple[Tensor, Tensor]:
        """q_i·k_j (N,R,C,C), and the decay between them, zero above the diagonal."""
        q_NQK = self.rows_of_q()
        score_NRCC = torch.bmm(q_NQK, self.k_NCK.transpose(1, 2)).unflatten(1, (self.groups, -1))
        C = self.k_NCK.shape[1]
        if self.sums_NC is None:
            return score_NRCC, decay.causal_mask(C, C, q_NQK.device).to(q_NQK.dtype)
        return score_NRCC, decay.between(self.sums_NC, self.sums_NC, q_NQK.dtype)[:, None]

    def order_weights(self) -> Tensor | None:
        """(orders, N, 1, 1, 1), against the scores."""
        return None if self.weights_NO is None else self.weights_NO.T[:, :, None, None, None]

    def rows_of_q(self) -> Tensor:
        assert self.q_NQK is not None
        return self.q_NQK


class _Chunked(Chunked):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        """Those of `chunked`."""
        y_NRTW, result, used_NRT1 = _outputs(*arguments)
        *inputs, ctx.plan = arguments
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, y_NRTW, result, used_NRT1)
        return y_NRTW, result

    @staticmethod
    def ordinary(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        return _outputs(*arguments)[:2]

    @staticmethod
    @without_autocast
    def backward(ctx: Any, dy_NRTW: Tensor | None, d_result_NFW: Tensor | None) -> tuple[Tensor | None, ...]:
        q_NRTK, k_NSK, v_NSW, log_decay_NS, state_NFW, weights_NO, y_NRTW, result_NFW, used_NRT1 = ctx.saved_tensors
        plan: Plan = ctx.plan
        if torch.is_grad_enabled():
            inputs = ctx.saved_tensors[:6]
            return (*twice_differentiable(_Chunked.ordinary, inputs, (dy_NRTW, d_result_NFW), plan), None)
        if dy_NRTW is None:
            dy_NRTW = torch.zeros_like(y_NRTW)
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
        if log_decay_NS is not None:
            # step 6, in the widest dtype: neighbouring terms cancel, and there are T of them
            wide = decay.widest(k_NSK.device)
            d_sums_NS = -(v_NSW * dv_NSW).sum(-1, dtype=wide)
            d_sums_NS[:, k_NSK.shape[1] - q_NRTK.shape[2] :] += (y_NRTW * dy_NRTW).sum((1, 3), dtype=wide)
            if d_result_NFW is not None:
                d_sums_NS[:, plan.folded - 1] += (result_NFW * d_result_NFW).sum((1, 2), dtype=wide)
            d_decay_NS = d_sums_NS.flip(1).cumsum(1).flip(1).to(log_decay_NS.dtype)
            d_decay_NS = d_decay_NS * (log_decay_NS > decay.SMALLEST_LOG_DECAY)
        return dq_NRTK, dk_NSK, dv_NSW, d_decay_NS, None if state_NFW is None else dstate, d_weights_NO, None


def _outputs(
    q_NRTK: Tensor,
    k_NSK: Tensor,
    v_NSW: Tensor,
    log_decay_NS: Tensor | None,
    state_NFW: Tensor | None,
    weights_NO: Tensor | None,
    plan: Plan,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Those of `chunked`, and which queries (N,R,T,1) use what they read from the state. Nothing is written in place."""
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


def initial_state(state_NFW: Tensor | None, k_NSK: Tensor, v_NSW: Tensor, kernel: Kernel) -> Tensor:
    if state_NFW is not None:
        return state_NFW
    return v_NSW.new_zeros(k_NSK.shape[0], kernel.feature_count(k_NSK.shape[-1]), v_NSW.shape[-1])


def _grad_of_weights(kernel: Kernel, score: Tensor, dw: Tensor) -> Tensor:
    terms = [c * (dw * score**n).sum((1, 2, 3)) for n, c in zip(kernel.orders, kernel.coefficients, strict=True)]
    return torch.stack(terms, dim=1)


def _sum_by_order(kernel: Kernel, x_NF: Tensor, dim: int) -> Tensor:
    parts = (kernel.feature_weights(dim, x_NF) * x_NF).split(kernel.feature_counts(dim), dim=1)
    return torch.stack([part.sum(1) for part in parts], dim=1)
