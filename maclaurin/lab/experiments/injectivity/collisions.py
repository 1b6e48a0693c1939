"""The checks I1 to I11 on random queries and keys, in float64: each a claim that the numbers decide."""

# N keys, D channels, P pairs of queries

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, eye, generator, normal, vector
from maclaurin.lab.result import Curve, Plot
from maclaurin.mixers.feature_maps import features
from maclaurin.mixers.mechanisms import Inline, Linear, Mechanism, Softmax

FIGURE = "InLine, arXiv 2412.06590, README"
FIGURE_KEYS = ((0.6, 1.85), (1.0, 1.0), (1.9, 0.65), (1.8, 0.3))
FIGURE_QUERY, FIGURE_LENGTHS = (0.4, 0.71), (1.0, 1.65, 2.35, 2.9)
FIGURE_LINEAR, FIGURE_INLINE, FIGURE_SOFTMAX = (0.32, 0.23, 0.25, 0.19), (0.43, 0.20, 0.26, 0.11), (0.46, 0.18, 0.23, 0.13)
SOFTMAX = Softmax(causal=False)
LINEAR, LINEAR_ELU = (Linear(name, 1.0, causal=False) for name in ("relu", "elu"))
FACTORS = [2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
DRAWS = 10  # for what varies between draws as much as from what is expected
ROUNDING = 1e-16  # weights are about 1/N: a few units in the last place


@dataclass(frozen=True)
class Draw:
    """Random queries and keys. ties: one channel is the same in all keys, so that a direction of the query has no effect."""

    q_PD: Tensor
    k_ND: Tensor
    inline_scale: float
    seed: int

    @classmethod
    def of(cls, keys: int, dim: int, seed: int, *, ties: bool, inline_scale: float | None) -> Draw:
        source = generator(seed)
        q, k = (normal(count, dim, generator=source) for count in (200, keys))
        if ties:
            k[:, -1] = 1.0
        return cls(q, k, dim**-0.5 if inline_scale is None else inline_scale, seed)

    def others(self, count: int) -> list[Draw]:
        """As many draws of this size, this one's seed the first."""
        seeds = range(self.seed, self.seed + count)
        return [Draw.of(len(self.k_ND), self.dim, seed, ties=False, inline_scale=self.inline_scale) for seed in seeds]

    @property
    def dim(self) -> int:
        return self.k_ND.shape[1]

    @property
    def inline(self) -> Inline:
        return Inline(scale=self.inline_scale, causal=False)


def weights(mechanism: Mechanism, q_PD: Tensor, k_ND: Tensor) -> Tensor:
    return mechanism.weights(q_PD[None, :, None], k_ND[None, :, None])[0, 0]


def all_checks(draw: Draw) -> list[claims.Claim]:
    checks = (inline_form, linear_collisions, rank_condition, first_order, key_shift)
    return [*(claim for check in checks for claim in check(draw)), *figure()]


def inline_form(draw: Draw) -> list[claims.Claim]:
    weight_PN = weights(draw.inline, draw.q_PD, draw.k_ND)
    sums = max(abs(math.fsum(row) - 1) for row in weight_PN.tolist())
    negative = (weight_PN < 0).double().mean().item()
    return [
        claims.at_most("I1 sum", "InLine: weights sum to 1, largest error", sums, 1e-15),
        claims.near("I1 sign", "InLine: share of negative weights", negative, 0.15, 0.03),
    ]


def linear_collisions(draw: Draw) -> list[claims.Claim]:
    """Queries made to collide: I3 and I4 for linear attention, I7 for InLine behind a ReLU."""
    source = generator(draw.dim)
    matrix = normal(draw.dim, draw.dim, generator=source)
    bias, ray = (torch.rand(draw.dim, generator=source, dtype=torch.float64, device="cpu") + 0.1 for _ in range(2))

    def affine(x: Tensor) -> Tensor:
        return x @ matrix.T + bias

    on_a_ray = torch.linalg.solve(matrix, (vector((0.5, 1.0, 2.0, 8.0))[:, None] * ray - bias).T).T
    affine_PN = weights(LINEAR, affine(on_a_ray), affine(draw.k_ND))
    p, negative = draw.q_PD, -draw.q_PD.abs()
    longer = 2.5 * features(p, "elu")
    stretched = torch.where(longer > 1, longer - 1, longer.clamp(min=1e-300).log())  # the inverse of elu + 1
    far = (p - stretched).norm(dim=-1).min().item()
    behind_relu = Inline("relu", draw.inline_scale, causal=False)

    def difference(mechanism: Mechanism, p: Tensor, q: Tensor) -> float:
        return distance(weights(mechanism, p, draw.k_ND), weights(mechanism, q, draw.k_ND))

    relu, elu = difference(LINEAR, p, 3 * p), difference(LINEAR_ELU, p, stretched)
    on_one_ray = distance(affine_PN, affine_PN[:1])
    below = difference(behind_relu, negative, 2 * negative)
    return [
        claims.at_most("I3 relu", "linear, relu: p and 3p, largest difference", relu, ROUNDING),
        claims.at_most("I3 elu", "linear, elu+1: p and φ⁻¹(2.5 φ(p)), largest difference", elu, ROUNDING),
        claims.at_least("I3 apart", "linear, elu+1: those queries are far apart, smallest distance", far, 0.5),
        claims.at_most("I4", "linear, relu(Ax+b): queries A⁻¹(c·r−b) for four c", on_one_ray, ROUNDING * 100),
        claims.at_most("I7", "InLine, relu: p and 2p with all channels negative", below, ROUNDING),
    ]


def rank_condition(draw: Draw) -> list[claims.Claim]:
    """I5, I6: what decides is whether the centred keys have full column rank."""
    tied_ND = draw.k_ND.clone()
    tied_ND[:, -1] = 0.7
    along = 2 * eye(draw.dim)[-1]
    changes = [
        (weights(SOFTMAX, draw.q_PD, k_ND) - weights(SOFTMAX, draw.q_PD + along, k_ND)).abs().sum(-1)
        for k_ND in (tied_ND, draw.k_ND)
    ]
    tied, generic = changes[0].max().item(), changes[1].min().item()
    # 0 where a direction of the query has no effect
    smallest = torch.linalg.svdvals(draw.k_ND - draw.k_ND.mean(0))[-1].item()
    p, q = draw.q_PD[::2], draw.q_PD[1::2]
    moved = (weights(draw.inline, p, draw.k_ND) - weights(draw.inline, q, draw.k_ND)).norm(dim=-1)
    # the scale of the bound holds the 1/N as well
    bound = smallest * draw.dim**-0.5 / len(draw.k_ND) * (p - q).norm(dim=-1)
    tightest = (moved / bound.clamp(min=1e-300)).min().item() if smallest > 1e-12 else 0.0
    return [
        claims.at_most("I5 tied", "softmax: a key channel that never varies is not seen, largest change", tied, 1e-14),
        claims.at_least("I5", "softmax: generic keys see the same step of the query, smallest change (L1)", generic, 0.01),
        claims.at_least("I6 rank", "InLine: smallest singular value of the centred keys", smallest, 1e-6),
        claims.at_least("I6", "InLine: ‖W(p)−W(q)‖ over σ_min·scale·‖p−q‖, smallest over 100 pairs", tightest, 1.0),
    ]


def first_order(draw: Draw) -> list[claims.Claim]:
    """I8: InLine is the expansion of softmax about uniform weights, so that halving scores quarters the difference."""
    far = first_order_errors(draw, [1 / 512, 1 / 1024])
    far_factor = far[0] / far[1]
    errors = [first_order_errors(other, [1.0, 0.125]) for other in draw.others(DRAWS)]
    thrice = sorted((large / small) ** (1 / 3) for large, small in errors)
    over = f"median of {DRAWS} draws, {thrice[0]:.2f} to {thrice[-1]:.2f}"
    text = f"softmax − InLine: factor a halving of the scores, mean of three; {over}"
    return [
        claims.near("I8", text, statistics.median(thrice), 4.0, 1.0),
        claims.near("I8 limit", "the same for scores times 1/512", far_factor, 4.0, 0.05),
    ]


def first_order_plot(draw: Draw) -> Plot:
    errors = first_order_errors(draw, FACTORS)
    square = [errors[-1] * (factor / FACTORS[-1]) ** 2 for factor in FACTORS]
    curves = [Curve("softmax − InLine", FACTORS, errors), Curve("a square", FACTORS, square, dashed=True)]
    caption = (
        "Softmax minus InLine, the largest difference of a weight, against the size of the scores: second order is left."
    )
    return Plot("first-order", caption, "scores times", "largest difference", curves, log_x=True, log_y=True)


def first_order_errors(draw: Draw, factors: list[float]) -> list[float]:
    queries = [factor * draw.q_PD for factor in factors]
    return [distance(weights(SOFTMAX, q_PD, draw.k_ND), weights(draw.inline, q_PD, draw.k_ND)) for q_PD in queries]


def key_shift(draw: Draw) -> list[claims.Claim]:
    """I9: one vector added to all keys. I10: keys of one channel."""
    moved_ND = draw.k_ND + 1.5
    softmax, inline, linear = (
        distance(weights(mechanism, draw.q_PD, draw.k_ND), weights(mechanism, draw.q_PD, moved_ND))
        for mechanism in (SOFTMAX, draw.inline, LINEAR)
    )
    weight_PN = weights(LINEAR_ELU, draw.q_PD[:, :1], draw.k_ND[:, :1])
    varies = distance(weight_PN, weight_PN[:1])
    return [
        claims.at_most("I9 softmax", "softmax: the same vector added to all keys, largest change", softmax, 1e-14),
        claims.at_most("I9 inline", "InLine: the same", inline, 1e-14),
        claims.at_least("I9 linear", "linear: the same", linear, 1e-3),
        claims.at_most("I10", "linear, one channel, elu+1: weights do not depend on the query", varies, ROUNDING),
    ]


def figure() -> list[claims.Claim]:
    """I11: four keys and one query made longer; values were read off a figure, to two digits."""
    q_RD, k_ND = vector(FIGURE_LENGTHS)[:, None] * vector(FIGURE_QUERY), torch.stack([vector(key) for key in FIGURE_KEYS])
    linear = distance(weights(LINEAR, q_RD, k_ND), vector(FIGURE_LINEAR))
    inline = distance(weights(Inline(causal=False), q_RD, k_ND)[-1], vector(FIGURE_INLINE))
    softmax = distance(weights(SOFTMAX, q_RD, k_ND)[-1], vector(FIGURE_SOFTMAX))
    return [
        claims.at_most("I11 linear", "four keys, all four lengths: .32 .23 .25 .19", linear, 0.01, FIGURE),
        claims.at_most("I11 inline", "the longest query: .43 .20 .26 .11", inline, 0.01, FIGURE),
        claims.at_most("I11 softmax", "the longest query: .46 .18 .23 .13", softmax, 0.01, FIGURE),
    ]
