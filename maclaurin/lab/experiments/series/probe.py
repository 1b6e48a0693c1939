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
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.feature_maps import features
from maclaurin.mixers.projected import ProjectedMixer
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


@torch.no_grad()
def layer_orders(model: Any, ids: Tensor) -> list[LayerOrders]:
    """Of every layer of a Maclaurin language model that has scores q·k, on the tokens ids (B, T)."""
    seen: dict[int, Tensor] = {}
    layers = _layers(model)

    def keep(index: int) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[index] = args[0]

        return hook

    hooks = [layer.mixer.register_forward_pre_hook(keep(index)) for index, layer in enumerate(layers)]
    try:
        model(ids.to(model.device), use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    names = model.config.layer_mixers()
    found = [
        orders_of_scores(index, names[index], scores(layers[index].mixer, x))
        for index, x in sorted(seen.items())
        if isinstance(layers[index].mixer, Attention)
    ]
    if not found:
        raise ValueError(f"the model has no layer with scores q·k, its mixers are {', '.join(sorted(set(names)))}")
    return found


def _layers(model: Any) -> list[Any]:
    layers = getattr(getattr(model, "model", None), "layers", [])
    if not len(layers) or not all(hasattr(layer, "mixer") for layer in layers):
        raise ValueError(
            f"checkpoint must be a language model of this project, got {type(model).__name__}: "
            "convert it with `maclaurin convert`"
        )
    return list(layers)


def scores(mixer: ProjectedMixer, x: Tensor) -> Tensor:
    """X (B,H,T,S) in float64: what the series is in, after rotation and feature map, with the mixer's own scale."""
    assert isinstance(mixer, Attention)
    p = mixer.project(x, None, "parallel", None)
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
    quartiles = by_query_BHTO.argmax(-1).double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
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
