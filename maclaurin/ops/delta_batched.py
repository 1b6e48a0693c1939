"""The delta rule in chunks where a launch costs more than the work of one chunk: only the state goes from chunk to chunk.

The steps are those of `delta_chunked.py`. Scores, features, decays and outputs of all chunks are computed at once, with β
and the decays as factors of the features, and chunks are long: two products and a triangular solve are left in turn.
Nothing is kept for the backward but the inputs: autograd runs the same steps again.
"""

# N heads of the batch, R query heads per key-value head, T time, J chunks of C tokens, K key channels, F monomials, V

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from maclaurin.ops import decay
from maclaurin.ops.chunks import Found, Plan, initial_state
from maclaurin.ops.features import gathered
from maclaurin.ops.transforms import recomputed

CHUNK = 512  # at least, and twice that for the larger states of higher orders
EXPANSION_BYTES = 2**31  # how much of m(q) may exist at a time; heads beyond it wait


def chunked(heads: Any, plan: Plan) -> Found:
    """As `delta_chunked.chunked`."""
    q_NRTK: Tensor = heads[0]
    N, R, T, K = q_NRTK.shape
    size = max(1, EXPANSION_BYTES // (plan.kernel.feature_count(K) * T * R * q_NRTK.element_size()))
    cut = [[None if x is None else x[start : start + size] for x in heads] for start in range(0, N, size)]
    found = [recomputed(_some_heads, *some, plan) for some in cut]
    return torch.cat([y for y, _ in found]), torch.cat([end for _, end in found]) if plan.folded else None


def _some_heads(q_NRTK: Tensor, k_NTK: Tensor, v_NTV: Tensor, beta_NT: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Outputs (N,R,T,V), and the state (N,F,V) behind the last token. Padding at the end has β = 0 and does not decay."""
    log_decay_NT, start_NFV, plan = others
    kernel, T = plan.kernel, k_NTK.shape[1]
    C = min(max(plan.chunk, CHUNK if kernel.orders[-1] == 1 else 2 * CHUNK), T)
    extra = -T % C
    k_NJCK, v_NJCV = (pad(x, (0, 0, 0, extra)).unflatten(1, (-1, C)) for x in (k_NTK, v_NTV))
    beta_NJC = pad(beta_NT, (0, extra)).unflatten(1, (-1, C))
    q_NJRCK = pad(q_NRTK, (0, 0, 0, extra)).unflatten(2, (-1, C)).transpose(1, 2)
    readers_NJXCK = torch.cat([k_NJCK[:, :, None], q_NJRCK], dim=2)
    score_NJXCC = readers_NJXCK @ k_NJCK[:, :, None].transpose(3, 4)
    m_NJXCF = gathered(readers_NJXCK, kernel.orders)
    read_NJXCF = m_NJXCF * kernel.feature_weights(k_NTK.shape[2], k_NTK)
    written_NJC, across_NJ = beta_NJC, None
    if log_decay_NT is None:
        between = decay.causal_mask(C, C, q_NRTK.device).to(q_NRTK.dtype)
    else:
        sums_NJC = decay.cumulative(pad(log_decay_NT, (0, extra)).unflatten(1, (-1, C)), 2)
        between = decay.between(sums_NJC, sums_NJC, q_NRTK.dtype)[:, :, None]
        written_NJC = beta_NJC * decay.factor(sums_NJC[..., -1:] - sums_NJC, beta_NJC.dtype)
        across_NJ = decay.factor(sums_NJC[..., -1], v_NTV.dtype)
        read_NJXCF = read_NJXCF * decay.factor(sums_NJC, v_NTV.dtype)[:, :, None, :, None]
    weight_NJXCC = kernel.value(score_NJXCC) * between * beta_NJC[:, :, None, None]
    writes_NJFC = (m_NJXCF[:, :, 0] * written_NJC[..., None]).transpose(2, 3)

    state, states, errors = initial_state(start_NFV, k_NTK, v_NTV, kernel), [], []
    factors = [None] * k_NJCK.shape[1] if across_NJ is None else across_NJ[..., None, None].unbind(1)
    in_turn = (v_NJCV, read_NJXCF[:, :, 0], weight_NJXCC[:, :, 0], writes_NJFC)
    for across, *chunk in zip(factors, *(x.unbind(1) for x in in_turn), strict=True):
        v_NCV, read_NCF, system_NCC, writes_NFC = chunk
        states.append(state)
        errors.append(
            solve_triangular(system_NCC, torch.baddbmm(v_NCV, read_NCF, state, alpha=-1), upper=False, unitriangular=True)
        )
        state = torch.baddbmm(state if across is None else state * across, writes_NFC, errors[-1])
    states_NJ1FV, errors_NJ1CV = (torch.stack(x, 1)[:, :, None] for x in (states, errors))
    y_NJRCV = weight_NJXCC[:, :, 1:] @ errors_NJ1CV + read_NJXCF[:, :, 1:] @ states_NJ1FV
    return y_NJRCV.transpose(1, 2).flatten(2, 3)[:, :, :T], state
