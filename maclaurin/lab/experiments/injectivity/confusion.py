"""How many pairs of queries of a trained model have the same weights: the paper's count of confusions.

A pair counts if the queries differ by more than 1e-3 of a query's mean length and their weights by less than a tolerance of
their own length, 1e-3 in the count. The paper's tolerance was not found.
"""

# B examples, H heads, Q queries, S keys

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.watched import Watched
from maclaurin.mixers import weights

TOLERANCE = 1e-3
TOLERANCES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)


@dataclass(frozen=True)
class Confusion:
    """Of one model. shares: of all pairs of distinct queries, the share with weights closer than each of TOLERANCES."""

    name: str
    pairs: float  # confused pairs an example, over all layers and heads, at TOLERANCE
    of: float  # pairs of distinct queries an example
    shares: list[float]
    layers: list[float]  # the share at TOLERANCE by layer


@torch.no_grad()
def confusion(watched: Watched) -> Confusion:
    """Queries of an image share all keys. In a text those of its second half are compared over the keys of its first."""
    close, distinct = [], []
    for layer in watched.layers():
        weight_BHTS, query_BTHK = weights.of_mixer(layer.mixer, layer.p), layer.p.q.double()
        if layer.mixer.causal:
            half = weight_BHTS.shape[-1] // 2
            weight_BHTS, query_BTHK = weight_BHTS[:, :, half:, :half], query_BTHK[:, half:]
        counts = torch.stack([_pairs(w, q.transpose(0, 1)) for w, q in zip(weight_BHTS, query_BTHK, strict=True)])
        close.append(counts[:, 1:].double().mean(0))
        distinct.append(counts[:, 0].double().mean(0))
    all_close, all_distinct = torch.stack(close).sum(0), torch.stack(distinct).sum().item()
    at = TOLERANCES.index(TOLERANCE)
    shares = [float(share) for share in all_close / max(all_distinct, 1)]
    layers = [float(one[at] / max(float(of), 1)) for one, of in zip(close, distinct, strict=True)]
    return Confusion(watched.name, float(all_close[at]), all_distinct, shares, layers)


def _pairs(weight_HQS: Tensor, query_HQK: Tensor) -> Tensor:
    """How many pairs are distinct, and how many of them closer than each tolerance."""
    apart = torch.cdist(query_HQK, query_HQK) > 1e-3 * query_HQK.norm(dim=-1).mean()
    once = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    # cdist by products would lose small distances
    distance = torch.cdist(weight_HQS, weight_HQS, compute_mode="donot_use_mm_for_euclid_dist")
    relative = distance / weight_HQS.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    counted = apart & once
    return torch.stack([counted.sum(), *((counted & (relative < tolerance)).sum() for tolerance in TOLERANCES)])
