"""How many orders softmax needs: the error of the first P of them, and Lagrange's bound of it.

The rest of the series after order P is at most |s|^(P+1)/(P+1)!·e^|s| at the score s. It is small once P is well above |s|,
so the order that softmax needs is set by its largest scores, not by its typical ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.experiments.series.identity import draw
from maclaurin.ops.features import Kernel

ROUNDING = 1e-13  # of float64, relative to e^|s|: below it errors are those of the arithmetic

Bound = Callable[[Tensor, int], Tensor]


def lagrange(score: Tensor, order: int) -> Tensor:
    size = score.abs()
    return (size.log() * (order + 1) - math.lgamma(order + 2) + size).exp()


@dataclass(frozen=True)
class Truncation:
    """At one order, over all causal pairs of tokens.

    error, bound: of exp(s), the largest. over_bound: the largest error as a multiple of its own bound. moved: the mean
    over queries of the weight that lies elsewhere than in softmax (total variation). broken: the share of queries with a
    negative weight, which odd orders have.
    """

    order: int
    error: float
    bound: float
    over_bound: float
    moved: float
    broken: float


def truncations(
    spread: float, orders: Sequence[int], tokens: int, dim: int, seed: int, bound: Bound = lagrange
) -> list[Truncation]:
    q, k, _ = draw(tokens, dim, spread, seed)
    score_TS = torch.einsum("bthk,bshk->ts", q, k)
    visible_TS = torch.ones_like(score_TS).tril().bool()
    score_P = score_TS[visible_TS]
    softmax_TS = score_TS.masked_fill(~visible_TS, -math.inf).softmax(-1)
    found = []
    for order in orders:
        kernel = Kernel.of(tuple(range(order + 1)))
        error_P = (kernel(score_P) - score_P.exp()).abs()
        bound_P = bound(score_P, order)
        excess_P = (error_P - ROUNDING * score_P.abs().exp()).clamp(min=0) / bound_P
        weight_TS = kernel(score_TS) * visible_TS
        share_TS = weight_TS / weight_TS.sum(-1, keepdim=True)
        found.append(
            Truncation(
                order,
                error_P.max().item(),
                bound_P.max().item(),
                excess_P.max().item(),
                ((share_TS - softmax_TS).abs().sum(-1) / 2).mean().item(),
                (weight_TS < 0).any(-1).double().mean().item(),
            )
        )
    return found


def order_for(found: Sequence[Truncation], moved: float) -> int | None:
    """The first order from which on at most that much weight is moved."""
    enough = [one.order for one in found if one.moved > moved]
    first = (enough[-1] + 1) if enough else found[0].order
    return first if first <= found[-1].order else None
