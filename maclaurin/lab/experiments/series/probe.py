"""The paper's probe: which order of the series weighs most in each layer of a trained model.

For a layer with scores X it takes the mean of |Xⁿ/n!| over all causal pairs of tokens, n = 0 … 99, and asks which n is
largest, for the layer and for each query. For Gaussian scores of variance σ² that is about n = σ²: the mean of e^|X| is made
by scores near σ², far out in the tail, and |X|ⁿ/n! is largest at n = |X|.
"""

# B rows of text, H heads, T queries, S keys, O orders

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.traces import Watched
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.feature_maps import features
from maclaurin.mixers.projected import Projections
from maclaurin.ops.arithmetic import repeat_heads

ORDERS = 100  # n = 0 … 99, as in the authors' code


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


def layer_orders(watched: Watched) -> list[LayerOrders]:
    """Of every layer that has scores q·k, on the examples."""
    found = [
        orders_of_scores(layer.index, layer.kind, scores(layer.mixer, layer.p))
        for layer in watched.layers()
        if isinstance(layer.mixer, Attention)
    ]
    if not found:
        kinds = ", ".join(dict.fromkeys(watched.kinds))
        raise ValueError(f"{watched.name!r} has no layer with scores q·k: its mixers are {kinds}")
    return found


def scores(mixer: Attention, p: Projections) -> Tensor:
    """X (B,H,T,S) in float64: what the series is in, after rotation and feature map, with the mixer's own scale."""
    q, k = (features(part, mixer.feature_map).double() for part in (p.q, p.k))
    scale = 1.0 if mixer.feature_map == "cosine" else mixer.key_dim**-0.5
    return scale * torch.einsum("bthk,bshk->bhts", q, repeat_heads(k, mixer.num_heads))


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
    quartiles = (
        by_query_BHTO.argmax(-1).double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device="cpu"))
    )
    visible = score_BHTS[..., visible_TS]
    low, median, high = quartiles.tolist()
    return LayerOrders(
        layer,
        mixer,
        int(of_layer_O.argmax()),
        (low, median, high),
        visible.var().item(),
        visible.abs().max().item(),
        of_layer_O.tolist(),
    )


def of_gaussian(variance: float) -> int:
    """The dominant order of Gaussian scores: E|X|ⁿ = σⁿ 2^(n/2) Γ((n+1)/2)/√π. About σ²."""
    spread = math.log(2 * variance) / 2
    terms = [order * spread + math.lgamma((order + 1) / 2) - math.lgamma(order + 1) for order in range(ORDERS)]
    return max(range(ORDERS), key=terms.__getitem__)
