"""Which queries a mixer and a trained model confuse: the heads' outputs for given queries, and the paper's count.

A pair of queries of a trained model counts as confused if they differ by more than 1e-3 of a query's mean length and their
weights by less than a tolerance of their own length, 1e-3 in the count. The paper's tolerance was not found.
"""

# B examples, H heads, Q queries, S keys, T tokens, C channels

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maclaurin.lab.experiments.draws import generator, normal, seeded
from maclaurin.lab.traces import Traced
from maclaurin.mixers import build_mixer
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import mixer_entry

SAME = 1e-5  # a relative change of the output that is rounding, or the epsilon of a norm
# p -> the query that a collision is asked for
PAIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "a ray, q and 3q": lambda p: 3 * p,
    "a sign, q and −q": lambda p: -p,
    "another, q and q'": lambda p: p.roll(1, dims=-1),
}
NEGATIVE = "all negative, q and 2q"
TOLERANCE = 1e-3
TOLERANCES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)


def told_apart(name: str, *, seed: int = 0, dim: int = 8, tokens: int = 50) -> dict[str, float] | None:
    """By pair of queries, the relative change of a fresh mixer's heads; None for a mixer without queries and keys.

    One head, in float64, without rotary positions and convolution, which would only change which queries these are. Norms,
    gates and decays take part, so this asks what the model can tell apart, not only the weights.
    """
    entry = mixer_entry(name)
    if not issubclass(entry.mixer, ProjectedMixer):
        return None
    known = entry.options()
    plain: dict[str, Any] = {"rotary": "none", "conv_width": 0, "activation": "identity", "key_dim": dim}
    with seeded(seed):
        mixer = build_mixer(name, dim, 1, **{option: value for option, value in plain.items() if option in known}).double()
    assert isinstance(mixer, ProjectedMixer)
    changes = {pair: output_change(mixer, other, seed, tokens) for pair, other in PAIRS.items()}
    return changes | {NEGATIVE: output_change(mixer, lambda p: 2 * p, seed, tokens, negative=True)}


@torch.no_grad()
def output_change(
    mixer: ProjectedMixer, other: Callable[[Tensor], Tensor], seed: int, tokens: int, *, negative: bool = False
) -> float:
    """|y(p) − y(other(p))| / |y(p)| of the heads at the last token, p a random query, with negative=True below zero."""
    source, size = generator(seed), mixer.num_heads * mixer.key_dim
    query = normal(size, generator=source)
    query = -query.abs() if negative else query
    qkv_BTC = normal(1, tokens, sum(mixer.qkv_sizes), generator=source).repeat(2, 1, 1)
    qkv_BTC[0, -1, :size], qkv_BTC[1, -1, :size] = query, other(query)
    x_BTD = normal(1, tokens, mixer.d_model, generator=source).repeat(2, 1, 1)
    first, second = heads_output(mixer, x_BTD, qkv_BTC)[:, -1]
    return ((first - second).norm() / first.norm().clamp(min=1e-300)).item()


def heads_output(mixer: ProjectedMixer, x_BTD: Tensor, qkv_BTC: Tensor) -> Tensor:
    """What the heads say (B, T, inner_dim), before the last projection, if queries, keys and values were these."""
    found: list[Tensor] = []
    given = mixer.qkv_proj.register_forward_hook(lambda module, args, output: qkv_BTC)
    keep = mixer.out_proj.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    with given, keep:
        mixer(x_BTD, return_state=False)
    return found[0]


@dataclass(frozen=True)
class Confusion:
    """Of one model. shares: of all pairs of distinct queries, the share with weights closer than each of TOLERANCES."""

    name: str
    pairs: float  # confused pairs an example, over all layers and heads, at TOLERANCE
    of: float  # pairs of distinct queries an example
    shares: list[float]
    layers: list[float]  # the share at TOLERANCE by layer


@torch.no_grad()
def confusion(traced: Traced) -> Confusion:
    """Queries of an image share all keys. In a text those of its second half are compared over the keys of its first."""
    close, distinct = [], []
    for layer in traced.layers():
        weight_BHTS, query_BTHK = layer.weights(), layer.q.double()
        if traced.grid is None:
            half = weight_BHTS.shape[-1] // 2
            weight_BHTS, query_BTHK = weight_BHTS[:, :, half:, :half], query_BTHK[:, half:]
        counts = torch.stack([_pairs(w, q.transpose(0, 1)) for w, q in zip(weight_BHTS, query_BTHK, strict=True)])
        close.append(counts[:, 1:].double().mean(0))
        distinct.append(counts[:, 0].double().mean(0))
    all_close, all_distinct = torch.stack(close).sum(0), torch.stack(distinct).sum().item()
    at = TOLERANCES.index(TOLERANCE)
    shares = [float(share) for share in all_close / max(all_distinct, 1)]
    layers = [float(one[at] / max(float(of), 1)) for one, of in zip(close, distinct, strict=True)]
    return Confusion(traced.name, float(all_close[at]), all_distinct, shares, layers)


def _pairs(weight_HQS: Tensor, query_HQK: Tensor) -> Tensor:
    """How many pairs are distinct, and how many of them closer than each tolerance."""
    apart = torch.cdist(query_HQK, query_HQK) > 1e-3 * query_HQK.norm(dim=-1).mean()
    once = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    # cdist by products would lose small distances
    gap = torch.cdist(weight_HQS, weight_HQS, compute_mode="donot_use_mm_for_euclid_dist")
    relative = gap / weight_HQS.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    counted = apart & once
    return torch.stack([counted.sum(), *((counted & (relative < tolerance)).sum() for tolerance in TOLERANCES)])
