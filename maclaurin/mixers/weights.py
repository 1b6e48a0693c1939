"""The weights that a mechanism gives to keys, written out as a matrix, and with any of the keys hidden from a query.

    softmax    w_ts = exp(x_ts + b_ts) / Σ_r exp(x_tr + b_tr)                      x_ts = scale · φ(q_t)·φ(k_s)
    kernel     w_ts = f(x_ts) exp(b_ts) / Σ_r f(x_tr) exp(b_tr)                    f a power, or terms of the series
    inline     w_ts = (x_ts − mean_r x_tr + 1) / (how many keys t sees)

Sums and means are over the keys that t sees, so that a hidden key is one that never was. b is a decay, 0 without one.
"""

# T queries, S keys, K channels; any leading dimensions (batch, heads)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.inline import Inline
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide
from maclaurin.ops.features import Kernel
from maclaurin.ops.reference import decay_sums

Features = Callable[[Tensor], Tensor]

FEATURES: dict[str, Features] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "leaky-relu": F.leaky_relu,
    "silu": F.silu,
    "elu": lambda x: F.elu(x) + 1,
    "exp": lambda x: (0.2 * x).exp(),
    "cosine": lambda x: F.normalize(x, dim=-1),
}


class Weights(Protocol):
    """Queries (..., T, K) and keys (..., S, K) -> weights (..., T, S); visible (T, S): which keys a query sees."""

    def __call__(self, q: Tensor, k: Tensor, visible: Tensor | None = None, /) -> Tensor: ...


def of_softmax(score_TS: Tensor, visible_TS: Tensor | None = None, bias_TS: Tensor | None = None) -> Tensor:
    score_TS = score_TS if bias_TS is None else score_TS + bias_TS
    if visible_TS is None:
        return score_TS.softmax(-1)
    # a query that sees nothing has no weights: its scores are all alike here and struck out below
    return score_TS.masked_fill(~visible_TS, torch.finfo(score_TS.dtype).min).softmax(-1) * visible_TS


def of_kernel(
    value_TS: Tensor, visible_TS: Tensor | None = None, bias_TS: Tensor | None = None, normalize: bool = True
) -> Tensor:
    """value: f(score)."""
    weight_TS = value_TS if bias_TS is None else value_TS * bias_TS.exp()
    weight_TS = weight_TS if visible_TS is None else weight_TS * visible_TS
    return safe_divide(weight_TS, weight_TS.sum(-1, keepdim=True)) if normalize else weight_TS


def of_inline(score_TS: Tensor, visible_TS: Tensor | None = None) -> Tensor:
    if visible_TS is None:
        visible_TS = torch.ones_like(score_TS, dtype=torch.bool)
    count_T1 = visible_TS.sum(-1, keepdim=True).clamp(min=1)
    mean_T1 = (score_TS * visible_TS).sum(-1, keepdim=True) / count_T1
    return (score_TS - mean_T1 + 1) / count_T1 * visible_TS


def softmax(features: str = "identity", scale: float | None = None) -> Weights:
    def weights(q: Tensor, k: Tensor, visible: Tensor | None = None, /) -> Tensor:
        return of_softmax(_score(q, k, FEATURES[features], scale), visible)

    return weights


def linear(features: str | Features = "relu") -> Weights:
    feature = FEATURES[features] if isinstance(features, str) else features

    def weights(q: Tensor, k: Tensor, visible: Tensor | None = None, /) -> Tensor:
        return of_kernel(_score(q, k, feature, 1.0), visible)

    return weights


def power(order: int | tuple[int, ...], scale: float | None = None) -> Weights:
    def weights(q: Tensor, k: Tensor, visible: Tensor | None = None, /) -> Tensor:
        return of_kernel(Kernel.of(order)(_score(q, k, FEATURES["identity"], scale)), visible)

    return weights


def inline(features: str = "identity", scale: float | None = None) -> Weights:
    def weights(q: Tensor, k: Tensor, visible: Tensor | None = None, /) -> Tensor:
        return of_inline(_score(q, k, FEATURES[features], scale), visible)

    return weights


def _score(q: Tensor, k: Tensor, features: Features, scale: float | None) -> Tensor:
    return default_scale(scale, q) * features(q) @ features(k).transpose(-1, -2)


def of_mixer(mixer: ProjectedMixer, p: Projections, visible_TS: Tensor | None = None) -> Tensor:
    """The weights (B, H, T, S) that a mixer gives to its values, in float64, from what it projects (`mixer.project`).

    A causal mixer sees the past, and of it what is visible. Where outputs are normalised later, weights are not.
    """
    weights_BHTS = _of_mechanism(mixer, p, visible_TS)
    if mixer.near is None:
        return weights_BHTS
    window_TS = last_tokens(p.q.shape[1], mixer.near.window).to(p.q.device)
    window_TS = window_TS if visible_TS is None else visible_TS & window_TS
    near_BHTS = of_softmax(_heads_score(p.q.double(), p.k.double(), mixer.key_dim**-0.5), window_TS)
    share_H11 = mixer.near.share().double()[:, None, None]
    return share_H11 * near_BHTS + (1 - share_H11) * weights_BHTS


def _of_mechanism(mixer: ProjectedMixer, p: Projections, visible_TS: Tensor | None) -> Tensor:
    T = p.q.shape[1]
    causal_TS = torch.ones(T, T, dtype=torch.bool, device=p.q.device).tril()
    if mixer.causal:
        visible_TS = causal_TS if visible_TS is None else visible_TS & causal_TS
    bias = None
    if p.log_decay is not None:
        if not mixer.causal:
            raise ValueError("weights behind a decay are written out for causal mixers only: build it with causal=True")
        bias = decay_sums(repeat_heads(p.log_decay.double(), mixer.num_heads))
    if isinstance(mixer, FeatureAttention):
        q, k = mixer.feature_map(p.q).double(), mixer.feature_map(p.k).double()
        return of_kernel(_heads_score(q, k, 1.0), visible_TS, bias, mixer.norm == "sum")
    if isinstance(mixer, Inline):
        features = FEATURES[mixer.feature_map]
        q = features(p.q.double())
        if mixer.scale is not None:
            return of_inline(_heads_score(q * mixer.scale.double(), features(p.k.double()), 1.0), visible_TS)
        return of_inline(_heads_score(q, features(p.k.double()), mixer.key_dim**-0.5), visible_TS)
    if not isinstance(mixer, Attention) or mixer.order_logits is not None:
        raise ValueError(f"{type(mixer).__name__} has no weights that are written out here: take softmax, linear, inline …")
    features = FEATURES[mixer.feature_map]
    scale = 1.0 if mixer.feature_map == "cosine" else mixer.key_dim**-0.5
    score = _heads_score(features(p.q.double()), features(p.k.double()), scale)
    if mixer.kernel is None:
        if mixer.window is not None:
            near = causal_TS.triu(1 - mixer.window)
            visible_TS = near if visible_TS is None else visible_TS & near
        return of_softmax(score, visible_TS, bias)
    return of_kernel(mixer.kernel(score), visible_TS, bias, mixer.norm == "sum")


def _heads_score(q_BTHK: Tensor, k_BSGK: Tensor, scale: float) -> Tensor:
    k_BSHK = repeat_heads(k_BSGK, q_BTHK.shape[2])
    return scale * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK)


def neighbours(grid: tuple[int, int], width: int) -> Tensor:
    """Which places (N, N) of a grid, row by row, lie in the square of that side around each place."""
    rows, columns = (torch.arange(side, dtype=torch.long, device="cpu") for side in grid)
    row_N, column_N = (part.flatten() for part in torch.meshgrid(rows, columns, indexing="ij"))
    reach = width // 2
    return ((row_N[:, None] - row_N).abs() <= reach) & ((column_N[:, None] - column_N).abs() <= reach)


def last_tokens(length: int, width: int) -> Tensor:
    """Which of the tokens (T, T) of a text are among the last `width` of each, itself included."""
    return torch.ones(length, length, dtype=torch.bool, device="cpu").tril().triu(1 - width)


def random_of_equal_number(chosen_NS: Tensor, among_NS: Tensor, generator: torch.Generator) -> Tensor:
    """For each query as many keys as are chosen, at random among the others given."""
    order = (
        torch.rand(chosen_NS.shape, generator=generator, dtype=torch.float32, device="cpu")
        .masked_fill(~among_NS, math.inf)
        .argsort(-1)
        .argsort(-1)
    )
    return (order < chosen_NS.sum(-1, keepdim=True)) & among_NS
