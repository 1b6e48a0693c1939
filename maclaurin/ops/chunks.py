"""What power attention and the delta rule share in chunks: a plan, one chunk's tensors, a backward without states."""

# N heads of the batch, R query heads per key-value head, T queries, S keys (the queries are the last T of them),
# C chunk, K key channels, F monomials, W value channels (with the column of ones, if the output is normalised)

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import decay
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.features import Kernel, contract, monomials
from maclaurin.ops.transforms import is_transformed, twice_differentiable

EXPANSION_BYTES = 64 * 2**20  # how much of m(x) may exist at a time; heads beyond it wait

# queries, scaled keys, values, log decays, state, weights of the orders: heads first, time next to channels
Heads = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
Pair = tuple[Tensor, Tensor]
Found = tuple[Tensor, Tensor | None]  # outputs (N,R,T,W), and the state (N,F,W), if one is asked for


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


@dataclass(frozen=True)
class Function:
    """outputs(heads, plan): y, the state and what else the backward needs. gradients(saved, dy, dstate, plan): by the heads.

    saved are the heads, then all outputs. Nothing is written in place by `outputs`, which may be differentiated itself.
    """

    outputs: Callable[[Any, Plan], tuple[Tensor, Tensor | None, Tensor | None]]
    gradients: Callable[[Any, Tensor, Tensor | None, Plan], tuple[Tensor | None, ...]]

    def ordinary(self, *heads: Tensor | None, plan: Plan) -> Found:
        """In ordinary operators, for what does not see into a backward."""
        return self.outputs(heads, plan)[:2]

    def some_heads_at_a_time(self, heads: Any, plan: Plan, rows: int) -> Found:
        """As many heads at a time as m(x) of `rows` tokens each has room for."""
        q_NRTK: Tensor = heads[0]
        size = max(1, EXPANSION_BYTES // (plan.kernel.feature_count(q_NRTK.shape[3]) * rows * q_NRTK.element_size()))
        pieces: list[Any] = []
        for start in range(0, q_NRTK.shape[0], size):
            some = [None if x is None else x[start : start + size] for x in heads]
            pieces.append(self.ordinary(*some, plan=plan) if is_transformed() else _WithBackward.apply(*some, plan, self))
        if len(pieces) == 1:
            return pieces[0][0], pieces[0][1]
        y_NRTW = torch.cat([y for y, _ in pieces])
        return y_NRTW, torch.cat([state for _, state in pieces]) if plan.folded else None


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Found:
        *heads, ctx.plan, ctx.function = arguments
        y, state, kept = ctx.function.outputs(heads, ctx.plan)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*heads, y, state, kept)
        return y, state

    @staticmethod
    @without_autocast
    def backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            ordinary = partial(ctx.function.ordinary, plan=ctx.plan)
            return (*twice_differentiable(ordinary, saved[:-3], (dy, dstate)), None, None)
        dy = torch.zeros_like(saved[-3]) if dy is None else dy
        return (*ctx.function.gradients(saved, dy, dstate, ctx.plan), None, None)


@dataclass
class Chunk:
    """One chunk's slice of every input, its decays, and the products that several steps need."""

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


def initial_state(state_NFW: Tensor | None, k_NSK: Tensor, v_NSW: Tensor, kernel: Kernel) -> Tensor:
    if state_NFW is not None:
        return state_NFW
    return v_NSW.new_zeros(k_NSK.shape[0], kernel.feature_count(k_NSK.shape[-1]), v_NSW.shape[-1])


def grad_of_decay(
    log_decay_NS: Tensor, values: Pair, outputs: Pair, state: tuple[Tensor | None, Tensor | None], plan: Plan
) -> Tensor:
    """da_u = Σ_{t>=u} (y_t·dy_t - v_t·dv_t) + <S, dS>, of tensors and their gradients. S is the state that is returned.

    In the widest dtype: neighbouring terms cancel, and there are as many as tokens.
    """
    wide = decay.widest(log_decay_NS.device)
    (v_NSW, dv_NSW), (y_NRTW, dy_NRTW), (state_NFW, dstate_NFW) = values, outputs, state
    given_NS = -(v_NSW * dv_NSW).sum(-1, dtype=wide)
    given_NS[:, v_NSW.shape[1] - y_NRTW.shape[2] :] += (y_NRTW * dy_NRTW).sum((1, 3), dtype=wide)
    if state_NFW is not None and dstate_NFW is not None:
        given_NS[:, plan.folded - 1] += (state_NFW * dstate_NFW).sum((1, 2), dtype=wide)
    d_decay_NS = given_NS.flip(1).cumsum(1).flip(1).to(log_decay_NS.dtype)
    return d_decay_NS * (log_decay_NS > decay.SMALLEST_LOG_DECAY)
