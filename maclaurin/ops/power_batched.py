"""Power attention in chunks where a launch costs more than the work of one chunk: all chunks at once, in a few products.

The steps are those of `power_chunked.py`. The states before all chunks are one product of what every chunk adds with the
decays between them, J x J for J chunks. Nothing is kept for the backward but the inputs: autograd runs the same steps again.
"""

# N heads of the batch, R query heads per key-value head, T queries, S keys (the queries are the last T of them),
# J chunks of C tokens, K key channels, F monomials, W value channels (with the column of ones, if the output is normalised)

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops import decay
from maclaurin.ops.chunks import Found, Heads, Plan
from maclaurin.ops.features import gathered
from maclaurin.ops.rounding import above_rounding
from maclaurin.ops.transforms import recomputed

EXPANSION_BYTES = 2**31  # how much of m(q) may exist at a time; heads beyond it wait


def chunked(heads: Heads, plan: Plan) -> Found:
    """As `power_chunked.chunked`."""
    q_NRTK, k_NSK, v_NSW, log_decay_NS, state_NFW, weights_NO = heads
    N, R, T, K = q_NRTK.shape
    S = k_NSK.shape[1]
    at_most = max(1, EXPANSION_BYTES // (plan.kernel.feature_count(K) * S * R * q_NRTK.element_size()))
    groups = max(1, math.ceil(N / at_most))
    size = max(1, math.ceil(N / groups))  # of one size, which takes the least memory
    outputs, states = [], []
    for some in (slice(start, start + size) for start in range(0, N, size)):
        state = None if state_NFW is None else state_NFW[some]
        weights = None if weights_NO is None else weights_NO[some]
        pieces, kept = [], None
        for begin, end in ((0, plan.folded), (plan.folded, S)):
            if begin == end:
                continue
            queries = slice(max(begin - (S - T), 0), max(end - (S - T), 0))
            a_NS = None if log_decay_NS is None else log_decay_NS[some, begin:end]
            tokens = (q_NRTK[some, :, queries], k_NSK[some, begin:end], v_NSW[some, begin:end], a_NS)
            y, state = recomputed(_part, *tokens, state, weights, plan)
            kept = state if end == plan.folded else kept
            pieces.append(y)
        outputs.append(torch.cat(pieces, dim=2))
        states.append(kept)
    new = [state for state in states if state is not None]
    return torch.cat(outputs), torch.cat(new) if new else None


def _part(q_NRTK: Tensor, k_NSK: Tensor, v_NSW: Tensor, a_NS: Tensor | None, *others: Any) -> tuple[Tensor, Tensor]:
    """Outputs and the state behind the last key. Slots without a query have one of zeros."""
    start_NFW, weights_NO, plan = others
    kernel = plan.kernel
    T, (N, S) = q_NRTK.shape[2], k_NSK.shape[:2]
    C = min(plan.chunk, S)
    extra = -S % C
    k_NJCK, v_NJCW = (_padded(x, 0, 0, 0, extra).unflatten(1, (-1, C)) for x in (k_NSK, v_NSW))
    sums_NJC = None if a_NS is None else decay.cumulative(_padded(a_NS, 0, extra).unflatten(1, (-1, C)), 2)
    left_NJCW = v_NJCW if sums_NJC is None else v_NJCW * decay.factor(sums_NJC[..., -1:] - sums_NJC, v_NJCW.dtype)[..., None]
    added_NJFW = gathered(k_NJCK, kernel.orders).transpose(2, 3) @ left_NJCW
    states_NJFW, end_NFW = _states(added_NJFW, sums_NJC, start_NFW)
    if T == 0:
        return v_NSW.new_empty(N, q_NRTK.shape[1], 0, v_NSW.shape[2]), end_NFW
    q_NRJCK = _padded(q_NRTK, 0, 0, S - T, extra).unflatten(2, (-1, C))
    q_NJRCK = q_NRJCK.transpose(1, 2)

    score_NJRCC = q_NJRCK @ k_NJCK[:, :, None].transpose(3, 4)
    by_order = None if weights_NO is None else weights_NO.T[:, :, None, None, None, None]
    if sums_NJC is None:
        between = decay.causal_mask(C, C, q_NRTK.device).to(q_NRTK.dtype)
    else:
        between = decay.between(sums_NJC, sums_NJC, q_NRTK.dtype)[:, :, None]
    y_NJRCW = (kernel.value(score_NJRCC, by_order) * between) @ v_NJCW[:, :, None]

    q_NJQK = q_NJRCK.flatten(2, 3)
    read_NJQW = gathered(q_NJQK, kernel.orders) @ (kernel.monomial_weights(k_NSK, weights_NO)[..., None, :, :] * states_NJFW)
    if plan.guarded:
        used = above_rounding(
            read_NJQW[..., -1:].flatten(0, 1),
            q_NJQK.flatten(0, 1),
            states_NJFW[..., -1].flatten(0, 1),
            kernel,
            None if weights_NO is None else weights_NO.repeat_interleave(k_NJCK.shape[1], 0),
        )
        read_NJQW = read_NJQW * used.unflatten(0, (N, -1))
    read_NJRCW = read_NJQW.view_as(y_NJRCW)
    if sums_NJC is not None:
        read_NJRCW = read_NJRCW * decay.factor(sums_NJC, read_NJRCW.dtype)[:, :, None, :, None]
    y_NRSW = (y_NJRCW + read_NJRCW).transpose(1, 2).flatten(2, 3)
    return y_NRSW[:, :, S - T : S], end_NFW


def _states(added_NJFW: Tensor, sums_NJC: Tensor | None, start_NFW: Tensor | None) -> tuple[Tensor, Tensor]:
    """The states before all chunks, and the one behind the last: what came before and every chunk added, decayed."""
    J, dtype = added_NJFW.shape[1], added_NJFW.dtype
    if start_NFW is None:
        terms_NIFW = pad(added_NJFW, (0, 0, 0, 0, 1, 0))
    else:
        terms_NIFW = torch.cat([start_NFW[:, None], added_NJFW], dim=1)
    if sums_NJC is None:
        weight = decay.causal_mask(J + 1, J + 1, added_NJFW.device).to(dtype)
    else:
        ends_NI = pad(sums_NJC[..., -1].cumsum(1), (1, 0))
        weight = decay.between(ends_NI, ends_NI, dtype)
    states_NIFW = (weight @ terms_NIFW.flatten(2)).view_as(terms_NIFW)
    return states_NIFW[:, :J], states_NIFW[:, J]


def _padded(x: Tensor, *sides: int) -> Tensor:
    """As `pad`, which copies all of x even where there is nothing to add."""
    return pad(x, sides) if any(sides) else x
