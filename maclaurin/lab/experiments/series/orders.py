"""Orders of the series of the exponential: each is a recurrent network, their sum is softmax, and how many of them it needs.

    exp(q·k) = Σ_n (q·k)ⁿ/n!,   (q·k)ⁿ = q^⊗n · k^⊗n,   so order n reads a state S_t = S_{t-1} + k_t^⊗n v_tᵀ of dⁿ rows.

The op's state holds each of the C(d+n-1, n) different rows once. The rest of the series after order P is at most
|s|^(P+1)/(P+1)!·e^|s| at the score s.

The paper's probe: of the mean of |Xⁿ/n!| over all causal pairs of tokens, X the scores, which n = 0 … 99 is largest, for the
layer and for each query. For Gaussian scores that is about their variance, made by scores far out in the tail.
"""

# B texts, T queries, S keys, H heads, K key channels, V value channels, O orders, P pairs of tokens

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maclaurin.lab.experiments.draws import generator, normal, relative_distance
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.lab.traces import Traced
from maclaurin.mixers.mechanisms import OfScores
from maclaurin.ops.arithmetic import default_scale, repeat_heads
from maclaurin.ops.features import Kernel
from maclaurin.ops.power import power_attention
from maclaurin.ops.softmax import softmax_attention

ROUNDING = 1e-13  # of float64, relative to e^|s|: below it errors are those of the arithmetic
ORDERS = 100  # of the probe, n = 0 … 99, as in the authors' code

Coefficient = Callable[[int], float]
Bound = Callable[[Tensor, int], Tensor]


def taylor_coefficient(order: int) -> float:
    return 1 / math.factorial(order)


def draw(tokens: int, dim: int, spread: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (1, T, 1, d) in float64; scores have about the standard deviation `spread`."""
    q, k, v = normal(3, 1, tokens, 1, dim, generator=generator(seed))
    return q * (spread / math.sqrt(dim)), k, v


def term(q: Tensor, k: Tensor, v: Tensor, order: int, form: str) -> Tensor:
    """Σ_s (q_t·k_s)ⁿ v_s for s <= t by the op; "recurrent" goes through its state at every token."""
    if order == 0:  # every score to the power 0 is the only score of queries and keys that are 1
        q = k = torch.ones_like(q[..., :1])
        order = 1
    # the matrix needs no state, which high orders could not have
    kept: dict[str, Any] = {"return_state": form == "recurrent", "fold_at": 1, "fold_every": 1}
    y, _ = power_attention(q, k, v, order=order, scale=1.0, normalize=False, form=form, backend="torch", **kept)
    return y


def tensor_network(q: Tensor, k: Tensor, v: Tensor, order: int) -> Tensor:
    """The same by the paper's network, whose state has a row for each of the dⁿ products of n channels."""
    q_TF = k_TF = torch.ones_like(q[0, :, 0, :1])
    for _ in range(order):
        q_TF, k_TF = ((power[:, :, None] * x[0]).flatten(1) for power, x in ((q_TF, q), (k_TF, k)))
    return System(torch.ones_like(k_TF)[:, None], k_TF[:, None], q_TF[:, None], v[0]).run()[None]


def check_order(order: int, tokens: int, dim: int, spread: float, seed: int) -> float:
    """The larger distance of the op's and the paper's network from the matrix, relative to the largest output."""
    q, k, v = draw(tokens, dim, spread, seed)
    matrix, *others = term(q, k, v, order, "parallel"), term(q, k, v, order, "recurrent"), tensor_network(q, k, v, order)
    return max(relative_distance(other, matrix) for other in others)


def check_sum(
    orders: int, tokens: int, dim: int, spread: float, seed: int, coefficient: Coefficient = taylor_coefficient
) -> tuple[float, float]:
    """Relative distances of Σ c_n·(network of order n) from the numerator of softmax, and over its own sum from softmax."""
    q, k, v = draw(tokens, dim, spread, seed)
    wide = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # the last column sums the weights
    total = torch.zeros_like(wide)
    for order in range(orders + 1):
        total += coefficient(order) * term(q, k, wide, order, "parallel")
    scores = torch.einsum("bthk,bshk->bhts", q, k)
    numerator = torch.einsum("bhts,bshv->bthv", scores.exp().tril(), wide)
    softmax, _ = softmax_attention(q, k, v, scale=1.0, form="parallel", backend="torch")
    return relative_distance(total, numerator), relative_distance(total[..., :-1] / total[..., -1:], softmax)


def lagrange(score: Tensor, order: int) -> Tensor:
    size = score.abs()
    return (size.log() * (order + 1) - math.lgamma(order + 2) + size).exp()


def _weights(tokens: int, dim: int, spread: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, which of them are visible, and softmax of these."""
    q, k, _ = draw(tokens, dim, spread, seed)
    score_TS = torch.einsum("bthk,bshk->ts", q, k)
    visible_TS = torch.ones_like(score_TS).tril().bool()
    return score_TS, visible_TS, score_TS.masked_fill(~visible_TS, -math.inf).softmax(-1)


@dataclass(frozen=True)
class Truncation:
    """At one order, over all causal pairs of tokens."""

    order: int
    error: float  # of exp(s), the largest
    bound: float
    over_bound: float  # the largest error as a multiple of its own bound
    moved: float  # the weight that lies elsewhere than in softmax (total variation), mean over queries
    broken: float  # the share of queries with a negative weight, which odd orders have


def truncations(
    spread: float, orders: Sequence[int], tokens: int, dim: int, seed: int, bound: Bound = lagrange
) -> list[Truncation]:
    score_TS, visible_TS, softmax_TS = _weights(tokens, dim, spread, seed)
    score_P = score_TS[visible_TS]
    found = []
    for order in orders:
        kernel = Kernel.of(tuple(range(order + 1)))
        error_P = (kernel(score_P) - score_P.exp()).abs()
        bound_P = bound(score_P, order)
        excess_P = (error_P - ROUNDING * score_P.abs().exp()).clamp(min=0) / bound_P
        weight_TS = kernel(score_TS) * visible_TS
        moved = (weight_TS / weight_TS.sum(-1, keepdim=True) - softmax_TS).abs().sum(-1).mean().item() / 2
        broken = (weight_TS < 0).any(-1).double().mean().item()
        error, largest, excess = (x_P.max().item() for x_P in (error_P, bound_P, excess_P))
        found.append(Truncation(order, error, largest, excess, moved, broken))
    return found


def orders_needed(spread: float, moved: float, tokens: int, dim: int, seeds: Sequence[int], most: int) -> list[int]:
    """The first order from which on at most `moved` of the weight lies elsewhere than in softmax, of each draw, sorted.

    `most` + 1 where that many orders are not enough.
    """
    found = []
    for seed in seeds:
        score_TS, visible_TS, softmax_TS = _weights(tokens, dim, spread, seed)
        term_TS = visible_TS.to(score_TS.dtype)
        sum_TS, needed = term_TS.clone(), 1
        for order in range(1, most + 1):
            term_TS = term_TS * score_TS / order
            sum_TS += term_TS
            if (sum_TS / sum_TS.sum(-1, keepdim=True) - softmax_TS).abs().sum(-1).mean().item() / 2 > moved:
                needed = order + 1
        found.append(needed)
    return sorted(found)


@dataclass(frozen=True)
class LayerOrders:
    """dominant: of the layer. by_query: the quartiles of the same over its queries. variance, largest: of its scores."""

    layer: int
    mixer: str
    dominant: int
    by_query: tuple[float, float, float]
    variance: float
    largest: float
    log_terms: Sequence[float]  # log of the mean of |X|ⁿ/n!, n = 0 … 99


def layer_orders(traced: Traced) -> list[LayerOrders]:
    """Of every layer that has scores q·k, on the examples."""
    found = [
        orders_of_scores(layer.index, layer.kind, scores(layer.mechanism, layer.q, layer.k))
        for layer in traced.layers()
        if isinstance(layer.mechanism, OfScores)
    ]
    if not found:
        kinds = ", ".join(dict.fromkeys(traced.kinds))
        raise ValueError(f"{traced.name!r} has no layer with scores q·k: its mixers are {kinds}")
    return found


def scores(mechanism: OfScores, q: Tensor, k: Tensor) -> Tensor:
    """X (B,H,T,S) in float64: what the series is in, after rotation and feature map, with the mechanism's own scale."""
    q, k = (features.double() for features in mechanism.mapped(q, k))
    return default_scale(mechanism.scale, q) * torch.einsum("bthk,bshk->bhts", q, repeat_heads(k, q.shape[2]))


def orders_of_scores(layer: int, mixer: str, score_BHTS: Tensor) -> LayerOrders:
    """The probe on scores (B,H,T,S) of which a query sees the keys up to its own."""
    T = score_BHTS.shape[2]
    visible_TS = torch.ones(T, T, dtype=torch.bool, device=score_BHTS.device).tril()
    log_BHTS = score_BHTS.abs().log().masked_fill(~visible_TS, -math.inf)
    count_T = torch.arange(1, T + 1, device=score_BHTS.device, dtype=score_BHTS.dtype).log()
    terms = []
    for order in range(ORDERS):  # one order at a time: all of them would be a hundred matrices
        # |X|⁰ = 1, where |X| = 0 too
        power_BHTS = torch.zeros_like(log_BHTS).masked_fill(~visible_TS, -math.inf) if order == 0 else order * log_BHTS
        terms.append(power_BHTS.logsumexp(-1) - count_T - math.lgamma(order + 1))
    by_query_BHTO = torch.stack(terms, dim=-1)
    weight_T = (count_T - count_T.logsumexp(0))[:, None]  # every pair counts the same
    heads = math.log(score_BHTS.shape[0] * score_BHTS.shape[1])
    of_layer_O = (by_query_BHTO + weight_T).flatten(0, 2).logsumexp(0) - heads
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device="cpu")
    low, median, high = by_query_BHTO.argmax(-1).double().quantile(shares).tolist()
    visible = score_BHTS[..., visible_TS]
    sizes = (visible.var().item(), visible.abs().max().item())
    return LayerOrders(layer, mixer, int(of_layer_O.argmax()), (low, median, high), *sizes, of_layer_O.tolist())


def of_gaussian(variance: float) -> int:
    """The dominant order of Gaussian scores: E|X|ⁿ = σⁿ 2^(n/2) Γ((n+1)/2)/√π. About σ²."""
    if variance == 0:
        return 0
    spread = math.log(2 * variance) / 2
    terms = [order * spread + math.lgamma((order + 1) / 2) - math.lgamma(order + 1) for order in range(ORDERS)]
    return max(range(ORDERS), key=terms.__getitem__)
