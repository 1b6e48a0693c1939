"""Second order behind a decay per key channel: the weight of key s is (scale · Σ_c q_tc k_sc exp(a_{s+1,c} + … + a_tc))².

Written out, the square is a sum over pairs of channels, each behind the sum of their log decays: first order over the
d(d+1)/2 monomials of q and k, with one decay per monomial. Its state has its full size from the first token on.

An output is an average of values. Where its denominator is below the rounding error of the terms that it sums, at most
|q|² Σ_s Σ_c k_sc² exp(2 (a_{s+1,c} + …)), it is not used, as in `rounding.py`.
"""

# B batch, T time, H heads, G key-value heads, K channels, F = K(K+1)/2 monomials, V value channels, W = V+1

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops import checks, decay
from maclaurin.ops.arithmetic import default_scale, safe_divide, wide, without_autocast
from maclaurin.ops.features import Kernel, remembered
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.rounding import ROUNDING
from maclaurin.ops.states import LinearState, State

Attend = Callable[..., tuple[Tensor, LinearState | None]]

SQUARE = Kernel.of(2)


def squares_by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    scale: float | None = None,
    normalize: bool = True,
    state: State | None = None,
    **options: Any,
) -> tuple[Tensor, LinearState | None]:
    """y (B,T,H,V) and the state, from q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) and log_decay (B,T,G or H,K), <= 0.

    Other arguments as in `linear_attention`.
    """
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k, per_channel=True)
    dtype, scale = q.dtype, default_scale(scale, q)
    q, k, v = wide(q), wide(k) * scale, wide(v)
    attend: Attend = partial(linear_attention, scale=1.0, normalize=False, **options)
    features = (SQUARE.features(q), SQUARE.features(k))
    if not normalize:
        y, after = attend(*features, v, of_pairs(log_decay), state=state)
        return y.to(dtype), after
    ones = torch.ones_like(v[..., :1])
    sums, after = attend(*features, torch.cat([v, ones], dim=-1), of_pairs(log_decay), state=state)
    with torch.no_grad():
        squares = None if state is None else LinearState(_squares_of(state, k.shape[3]))
        sizes, _ = attend(torch.ones_like(q), k.square(), ones, 2 * log_decay, state=squares)
        error = 2 * ROUNDING * torch.finfo(q.dtype).eps * q.square().sum(-1, keepdim=True) * sizes
        used = sums[..., -1:] > error
    sums = sums * used  # not filled: NaN stays NaN
    return safe_divide(sums[..., :-1], sums[..., -1:]).to(dtype), after


@without_autocast
def of_pairs(log_decay: Tensor) -> Tensor:
    """a_p + a_r for every monomial x_p x_r: (..., K) -> (..., F). A product with zeros needs finite numbers."""
    finite = log_decay.clamp(min=decay.SMALLEST_LOG_DECAY)
    return finite @ _members(log_decay.shape[-1]).to(finite)


@remembered
def _members(dim: int) -> Tensor:
    """(K, F): how often each channel stands in each monomial."""
    first_F, second_F = torch.triu_indices(dim, dim, dtype=torch.long, device="cpu")
    one_hot = torch.eye(dim, dtype=torch.float64, device="cpu")
    return one_hot[:, first_F] + one_hot[:, second_F]


def _squares_of(state: State, dim: int) -> Tensor:
    """What the state holds of Σ_s k_sc², (B,G,K,1): the monomials that are squares, in the column that counts tokens."""
    checks.initial_state(state, LinearState)
    place_K = torch.tensor([p * dim - p * (p - 1) // 2 for p in range(dim)], dtype=torch.long, device="cpu")
    assert isinstance(state, LinearState)
    return state.recurrent[:, :, place_K.to(state.recurrent.device), -1:].detach()
