"""The experiment: identity, truncation, dominant orders, and what an order is worth in training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.lab import claims
from maclaurin.lab.checkpoints import checkpoint as open_checkpoint
from maclaurin.lab.checkpoints import of_tokens
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.series import identity, truncation
from maclaurin.lab.experiments.series.identity import Coefficient, taylor_coefficient
from maclaurin.lab.experiments.series.probe import LayerOrders, layer_orders, of_gaussian, orders_of_scores
from maclaurin.lab.experiments.series.training import Budget, Text, Trained, train
from maclaurin.lab.experiments.series.truncation import Truncation
from maclaurin.lab.result import Curve, Grid, Plot, Result
from maclaurin.mixers.attention import NORMS

SPREADS = (0.5, 1.0, 2.0, 4.0)  # standard deviations of scores
MOST_ORDERS = 40
CHECKED_ORDERS = (0, 1, 2, 3)
DIM, TOKENS = 4, 32
EXACT = 1e-12
FLOOR = 1e-16  # of plots: below it there is only rounding
PAPER = "arXiv 2507.23632"
NOTES = (
    "A truncated series is divided by its own sum. Odd orders have negative weights at very negative scores, so that the "
    "sum can come near zero: there the error of the weights is unbounded although that of the exponential is not.",
    "The effect of the order is that of models of some ten thousand parameters after a few hundred steps; the paper's are "
    "of 300 million and 100,000 steps. What is below the spread over seeds is no difference.",
    "The dominant order follows the largest scores of a layer, not the typical ones. Published values, read off plots: 14 "
    "to 24 in a model of 300 million with ReLU features, 5 to 23 in Llama-3-8B, about 74 in its last layer.",
)


def series(
    *,
    quick: bool = False,
    seed: int = 0,
    checkpoint: str | None = None,
    text: str | None = None,
    orders: tuple[int, ...] | None = None,
    steps: int | None = None,
    seeds: int = 2,
    width: int = 32,
    norm: str = "sum",
    tokens: int = 128,
    texts: int = 8,
) -> Result:
    """Softmax as a sum of recurrent networks, one an order of the series of exp (arXiv 2507.23632).

    checkpoint: folder of a language model whose dominant orders are asked for, and nothing is trained; otherwise the
    softmax model trained here
    orders: P of the Taylor models that are trained, with terms 0 to P; 1 to 10, with quick 1 to 4
    steps, seeds, width: budget of each; 300 steps, with quick 100
    norm: of the Taylor models, "sum" of the weights or "output", an RMS norm that does not mind negative weights
    text: what it reads, a file, folder or corpus; by default held-out text of its own or of the standard library
    tokens, texts: what the dominant orders are measured on: so many texts of so many tokens
    """
    at_least_one("seeds", seeds)
    at_least(2, "tokens", tokens)
    at_least_one("texts", texts)
    one_of("norm", norm, NORMS)
    budget = Budget(width=width, steps=steps or (100 if quick else 300))
    asked = orders or tuple(range(1, 5 if quick else 11))
    study: Study | None = None
    if checkpoint is None:
        library = Text()
        study = order_study(asked, library, budget, seeds, seed, norm)
        watched = of_tokens("softmax trained here", study.softmax[0].model, library.test(tokens + 1)[:texts])
    else:
        watched = open_checkpoint(checkpoint, text, tokens=tokens, texts=texts)
    layers = layer_orders(watched)
    found = {spread: truncation.truncations(spread, range(1, MOST_ORDERS + 1), 256, 16, seed) for spread in SPREADS}
    checks = [identity.check_order(order, TOKENS, DIM, 1.0, seed) for order in CHECKED_ORDERS]
    settings: dict[str, Any] = {"model": watched.name, "tokens": tokens, "texts": texts}
    if study is not None:
        settings |= {"orders": list(asked), **vars(budget), "norm": norm, "seeds": seeds}
    return Result(
        "series",
        "Softmax as a sum of recurrent networks of every order",
        settings | {"seed": seed},
        [
            *(_order_claim(one) for one in checks),
            *sum_claims(seed),
            *truncation_claims(found),
            *probe_claims(layers, seed),
            *(study.claims() if study else ()),
        ],
        [_identity_grid(checks), _truncation_grid(found), _layer_grid(layers), *([study.grid()] if study else ())],
        [*_truncation_plots(found), _layer_plot(layers), *([study.plot()] if study else ())],
        NOTES,
    )


def _order_claim(check: identity.OrderCheck) -> Claim:
    text = f"order {check.order}: T x T matrix, op's memory and memory of d^{check.order} rows agree; relative distance"
    return claims.at_most("P1.1", text, check.error, EXACT, PAPER)


def sum_claims(seed: int, coefficient: Coefficient = taylor_coefficient) -> list[Claim]:
    """The identity, with any coefficients: it holds for 1/n! and no others."""
    numerator, weights = identity.check_sum(MOST_ORDERS, TOKENS, DIM, 1.0, seed, coefficient)
    text = f"orders 0 to {MOST_ORDERS} add up to the numerator of softmax: relative distance"
    return [
        claims.at_most("P1.1 sum", text, numerator, EXACT, PAPER),
        claims.at_most(
            "P1.1 softmax", "the same divided by its own sum is softmax: relative distance", weights, EXACT, PAPER
        ),
    ]


def truncation_claims(found: dict[float, list[Truncation]]) -> list[Claim]:
    made = [
        claims.at_most(
            "bound",
            f"error of orders 1 to {MOST_ORDERS}, scores of spread {spread:g}: largest multiple of its Lagrange bound",
            max(one.over_bound for one in rows),
            1.0,
        )
        for spread, rows in found.items()
    ]
    even = max(one.broken for rows in found.values() for one in rows if one.order % 2 == 0)
    odd = max(one.broken for rows in found.values() for one in rows if one.order % 2)
    return [
        *made,
        claims.at_most("even", "even orders: queries with a negative weight, largest share", even, 0.0),
        claims.at_least("odd", "odd orders: the same, largest share; they do have them", odd, 0.01),
    ]


def probe_claims(layers: Sequence[LayerOrders], seed: int, scale: float = 1.0) -> list[Claim]:
    """The probe on Gaussian scores, whose answer is known, and on the layers of the model. scale: of those scores."""
    generator = torch.Generator().manual_seed(seed)
    drawn: Tensor = 2 * scale * torch.randn(1, 1, 512, 512, generator=generator, dtype=torch.float64, device="cpu")
    measured = orders_of_scores(0, "gaussian", drawn).dominant
    text = "dominant order of Gaussian scores of variance 4, by the probe"
    lowest = min(layer.dominant for layer in layers)
    return [
        claims.near("probe", text, measured, of_gaussian(4.0), 1.0),
        claims.at_least("P1.8", "lowest dominant order of a layer of this model; above 1", lowest, 2.0, PAPER),
    ]


@dataclass(frozen=True)
class Study:
    """Softmax and Taylor models of the same size, text and number of steps, one a seed."""

    softmax: list[Trained]
    by_order: dict[int, list[Trained]]

    def claims(self) -> list[Claim]:
        means = {order: _mean(runs) for order, runs in self.by_order.items()}
        softmax = _mean(self.softmax)
        first, last = min(means), max(means)
        losses = [means[order] for order in sorted(means)]
        falling = all(later <= earlier for earlier, later in pairwise(losses))
        seen = " ".join(f"{loss:.3f}" for loss in losses)
        gap, left = means[first] - softmax, means[last] - softmax
        return [
            claims.at_least("P1.2", f"loss of order {first} above that of softmax", gap, self.spread(first), PAPER),
            claims.at_most("P1.2", f"of that gap, the share that is left at order {last}", left / gap, 0.25, PAPER),
            claims.true("P1.2", "every further order lowers the loss", seen, falling, "falling", PAPER),
        ]

    def spread(self, order: int) -> float:
        """What a seed makes of a difference, with softmax or with that order, whichever is more."""
        rows = [[run.loss for run in runs] for runs in (self.softmax, self.by_order[order])]
        return max(max(losses) - min(losses) for losses in rows)

    def grid(self) -> Grid:
        rows: list[list[str | float]] = [[f"order {order}", *_range(runs)] for order, runs in sorted(self.by_order.items())]
        columns = ("model", "loss", "lowest", "highest")
        return Grid(
            "Held-out loss, nats a byte, mean and range over seeds", columns, [*rows, ["softmax", *_range(self.softmax)]]
        )

    def plot(self) -> Plot:
        orders = sorted(self.by_order)
        mean, low, high = zip(*(_range(self.by_order[order]) for order in orders), strict=True)
        flat = _mean(self.softmax)
        curves = [
            Curve("orders 0 to P", orders, mean, low, high),
            Curve("softmax", [orders[0], orders[-1]], [flat, flat], dashed=True),
        ]
        return Plot("loss", "Held-out loss by the highest order; range over seeds.", "P", "nats a byte", curves)


def order_study(orders: Sequence[int], text: Text, budget: Budget, seeds: int, seed: int, norm: str = "sum") -> Study:
    numbers = range(seed, seed + seeds)
    by_order = {
        order: [train("taylor", {"order": order, "norm": norm}, text, budget, number) for number in numbers]
        for order in orders
    }
    return Study([train("softmax", {}, text, budget, number) for number in numbers], by_order)


def _mean(runs: Sequence[Trained]) -> float:
    return statistics.fmean(run.loss for run in runs)


def _range(runs: Sequence[Trained]) -> tuple[float, float, float]:
    return _mean(runs), min(run.loss for run in runs), max(run.loss for run in runs)


def _identity_grid(checks: Sequence[identity.OrderCheck]) -> Grid:
    columns = ("order", f"rows dⁿ, d = {DIM}", "different ones", "at d = 64: dⁿ", "different ones", "relative distance")
    rows = [
        [one.order, one.tensor_rows, one.op_rows, 64**one.order, identity.monomial_count(64, one.order), one.error]
        for one in checks
    ]
    return Grid("One recurrent network an order: rows of its memory, and how far its three forms are apart", columns, rows)


def _truncation_grid(found: dict[float, list[Truncation]]) -> Grid:
    shown = (1, 2, 3, 4, 6, 8, 10, 20)
    columns = ("spread of scores", *(f"P = {order}" for order in shown), "1 % from P", "0.1 % from P")
    rows = []
    for spread, truncations in found.items():
        moved = {one.order: one.moved for one in truncations}
        needed = [truncation.order_for(truncations, share) for share in (0.01, 0.001)]
        rows.append([spread, *(moved[order] for order in shown), *needed])
    return Grid("Weight that orders 0 to P put elsewhere than softmax, mean over queries", columns, rows)


def _truncation_plots(found: dict[float, list[Truncation]]) -> list[Plot]:
    errors, moved = [], []
    for spread, rows in found.items():
        x = [one.order for one in rows]
        name = f"spread {spread:g}"
        errors.append(Curve(name, x, [one.error for one in rows]))
        errors.append(Curve(name, x, [max(one.bound, FLOOR) for one in rows], dashed=True))
        moved.append(Curve(name, x, [max(one.moved, FLOOR) for one in rows]))
    caption = "Largest error of exp(s) by orders 0 to P, and, dotted, the largest Lagrange bound."
    return [
        Plot("truncation", caption, "P", "error of exp(s)", errors, log_y=True),
        Plot("moved", "Weight that lies elsewhere than in softmax.", "P", "share of weight", moved, log_y=True),
    ]


def _layer_grid(layers: Sequence[LayerOrders]) -> Grid:
    columns = ("layer", "mixer", "dominant order", "by query: 25 %", "50 %", "75 %", "variance", "largest", "if Gaussian")
    rows: list[list[str | float]] = [
        [
            layer.layer,
            layer.mixer,
            layer.dominant,
            *layer.by_query,
            layer.variance,
            layer.largest,
            of_gaussian(layer.variance),
        ]
        for layer in layers
    ]
    return Grid("Which order weighs most, by layer; variance and largest size of its scores", columns, rows)


def _layer_plot(layers: Sequence[LayerOrders]) -> Plot:
    last = min(max(2 * max(layer.dominant for layer in layers) + 10, 15), len(layers[0].log_terms))
    x = list(range(last))
    curves = [Curve(f"layer {layer.layer}", x, [term / math.log(10) for term in layer.log_terms[:last]]) for layer in layers]
    return Plot("orders", "Mean size of every order of the series, by layer.", "order n", "log₁₀ of mean |Xⁿ/n!|", curves)
