"""Second-order attention in chunks, as short as it gets: read this first. `power.py` is the same, fast and for everything.

    y_t = Σ_{s<=t} (q_t·k_s)² exp(a_{s+1} + … + a_t) v_s / Σ_{s<=t} (q_t·k_s)² exp(a_{s+1} + … + a_t)

(q·k)² = (q⊗q)·(k⊗k), so the sum over all earlier chunks is one state of K·K·V numbers per head: linear time, constant state.
A scale of the scores would cancel in the quotient.
"""

# B batch, C chunks, L and S tokens of a chunk (queries and keys), H heads, I and J key channels, W value channels and a one

from __future__ import annotations

import torch
from torch import Tensor


def second_order_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None = None, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """q, k (B,T,H,K), v (B,T,H,V), log_decay (B,T,H) <= 0, T a multiple of `chunk`. Returns y (B,T,H,V) and the state."""
    # 1. A column of ones among the values sums the weights. Time is cut into chunks.
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    q, k, v, a = (x.unflatten(1, (-1, chunk)) for x in (q, k, v, log_decay))

    # 2. The decay from the start of a chunk to each token, from each token to its end, and from token s to token l.
    to_BCLH = a.cumsum(2)
    rest_BCSH = to_BCLH[:, :, -1:] - to_BCLH
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)[..., None]
    between_BCLSH = (to_BCLH[:, :, :, None] - to_BCLH[:, :, None]).masked_fill(later, -torch.inf)

    # 3. Inside a chunk: the weights as a matrix.
    weight_BCLSH = torch.einsum("bclhi,bcshi->bclsh", q, k) ** 2 * between_BCLSH.exp()
    y_BCLHW = torch.einsum("bclsh,bcshw->bclhw", weight_BCLSH, v)

    # 4. What each chunk adds to the state: Σ_s (k_s⊗k_s) v_s, decayed to its end.
    added_BCHIJW = torch.einsum("bcsh,bcshi,bcshj,bcshw->bchijw", rest_BCSH.exp(), k, k, v)

    # 5. From chunk to chunk the state decays and grows. This loop is all that is sequential.
    state_BHIJW = torch.zeros_like(added_BCHIJW[:, 0]) if state is None else state
    before = []
    for added_BHIJW, whole_BH in zip(added_BCHIJW.unbind(1), to_BCLH[:, :, -1].exp().unbind(1), strict=True):
        before.append(state_BHIJW)
        state_BHIJW = whole_BH[..., None, None, None] * state_BHIJW + added_BHIJW

    # 6. Every query reads the state from before its chunk, and the sum of the weights divides.
    read = torch.einsum("bclh,bclhi,bclhj,bchijw->bclhw", to_BCLH.exp(), q, q, torch.stack(before, dim=1))
    y_BTHW = (y_BCLHW + read).flatten(1, 2)
    return y_BTHW[..., :-1] / y_BTHW[..., -1:], state_BHIJW
