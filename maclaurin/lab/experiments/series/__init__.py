"""Softmax as a sum of recurrent networks, one an order of the exponential's series (arXiv 2507.23632)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.draws import generator, normal
from maclaurin.lab.experiments.series import orders as exponential
from maclaurin.lab.experiments.series.orders import LayerOrders, OrderCheck, Truncation, monomial_count, of_gaussian
from maclaurin.lab.experiments.series.study import LEARNING_RATE, LENGTH, PAPER, Bytes, Study, budget, order_study
from maclaurin.lab.result import Curve, Grid, Plot, Result
from maclaurin.lab.traces import checkpoint as open_checkpoint
from maclaurin.lab.traces import of_tokens
from maclaurin.mixers.attention import NORMS

SPREADS = (0.5, 1.0, 2.0, 4.0)  # standard deviations of scores
MOST_ORDERS = 40
CHECKED_ORDERS = (0, 1, 2, 3)
DIM, TOKENS = 4, 32
EXACT = 1e-12
FLOOR = 1e-16  # of plots: below it there is only rounding
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
    asked = orders or tuple(range(1, 5 if quick else 11))
    settings: dict[str, Any] = {"tokens": tokens, "texts": texts}
    study: Study | None = None
    if checkpoint is None:
        setting = budget(width, steps or (100 if quick else 300))
        study = order_study(asked, setting, seeds, seed, norm)
        traced = of_tokens("softmax trained here", study.softmax[0].model, Bytes("held-out", tokens).test(texts))
        size = {name: getattr(setting, name) for name in ("width", "heads", "layers", "steps", "batch")}
        settings |= {"orders": list(asked)} | size | {"length": LENGTH, "learning_rate": LEARNING_RATE}
        settings |= {"norm": norm, "seeds": seeds}
    else:
        traced = open_checkpoint(checkpoint, text, tokens=tokens, texts=texts)
    layers = exponential.layer_orders(traced)
    found = {spread: exponential.truncations(spread, range(1, MOST_ORDERS + 1), 256, 16, seed) for spread in SPREADS}
    checks = [exponential.check_order(order, TOKENS, DIM, 1.0, seed) for order in CHECKED_ORDERS]
    made = [*order_claims(checks), *sum_claims(seed), *truncation_claims(found), *probe_claims(layers, seed)]
    return Result(
        "series",
        "Softmax as a sum of recurrent networks of every order",
        {"model": traced.name} | settings | {"seed": seed},
        [*made, *(study.claims() if study else ())],
        [_identity_grid(checks), _truncation_grid(found), _layer_grid(layers), *([study.grid()] if study else ())],
        [*_truncation_plots(found), _layer_plot(layers), *([study.plot()] if study else ())],
        NOTES,
    )


def order_claims(checks: Sequence[OrderCheck]) -> list[Claim]:
    text = "order {0}: T x T matrix, op's memory and memory of d^{0} rows agree; relative distance"
    return [claims.at_most("P1.1", text.format(one.order), one.error, EXACT, PAPER) for one in checks]


def sum_claims(seed: int, coefficient: exponential.Coefficient = exponential.taylor_coefficient) -> list[Claim]:
    """The identity, with any coefficients: it holds for 1/n! and no others."""
    numerator, weights = exponential.check_sum(MOST_ORDERS, TOKENS, DIM, 1.0, seed, coefficient)
    text = f"orders 0 to {MOST_ORDERS} add up to the numerator of softmax: relative distance"
    divided = "the same divided by its own sum is softmax: relative distance"
    return [
        claims.at_most("P1.1 sum", text, numerator, EXACT, PAPER),
        claims.at_most("P1.1 softmax", divided, weights, EXACT, PAPER),
    ]


def truncation_claims(found: dict[float, list[Truncation]]) -> list[Claim]:
    text = "error of orders 1 to {}, scores of spread {:g}: largest multiple of its Lagrange bound"
    worst = {spread: max(one.over_bound for one in rows) for spread, rows in found.items()}
    even = max(one.broken for rows in found.values() for one in rows if one.order % 2 == 0)
    odd = max(one.broken for rows in found.values() for one in rows if one.order % 2)
    return [
        *(claims.at_most("bound", text.format(MOST_ORDERS, spread), share, 1.0) for spread, share in worst.items()),
        claims.at_most("even", "even orders: queries with a negative weight, largest share", even, 0.0),
        claims.at_least("odd", "odd orders: the same, largest share; they do have them", odd, 0.01),
    ]


def probe_claims(layers: Sequence[LayerOrders], seed: int, scale: float = 1.0) -> list[Claim]:
    """The probe on Gaussian scores, whose answer is known, and on the layers of the model. scale: of those scores."""
    scores = 2 * scale * normal(1, 1, 512, 512, generator=generator(seed))
    measured = exponential.orders_of_scores(0, "gaussian", scores).dominant
    text = "dominant order of Gaussian scores of variance 4, by the probe"
    lowest = min(layer.dominant for layer in layers)
    return [
        claims.near("probe", text, measured, of_gaussian(4.0), 1.0),
        claims.at_least("P1.8", "lowest dominant order of a layer of this model; above 1", lowest, 2.0, PAPER),
    ]


def _identity_grid(checks: Sequence[OrderCheck]) -> Grid:
    columns = ("order", f"rows dⁿ, d = {DIM}", "different ones", "at d = 64: dⁿ", "different ones", "relative distance")
    rows = [
        (one.order, one.tensor_rows, one.op_rows, 64**one.order, monomial_count(64, one.order), one.error) for one in checks
    ]
    return Grid("One recurrent network an order: rows of its memory, and how far its three forms are apart", columns, rows)


def _truncation_grid(found: dict[float, list[Truncation]]) -> Grid:
    shown = (1, 2, 3, 4, 6, 8, 10, 20)
    columns = ("spread of scores", *(f"P = {order}" for order in shown), "1 % from P", "0.1 % from P")
    rows = []
    for spread, rests in found.items():
        moved = {one.order: one.moved for one in rests}
        needed = [exponential.order_for(rests, share) for share in (0.01, 0.001)]
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
    rows = [
        (one.layer, one.mixer, one.dominant, *one.by_query, one.variance, one.largest, of_gaussian(one.variance))
        for one in layers
    ]
    return Grid("Which order weighs most, by layer; variance and largest size of its scores", columns, rows)


def _layer_plot(layers: Sequence[LayerOrders]) -> Plot:
    last = min(max(2 * max(layer.dominant for layer in layers) + 10, 15), len(layers[0].log_terms))
    x = list(range(last))
    curves = [Curve(f"layer {layer.layer}", x, [term / math.log(10) for term in layer.log_terms[:last]]) for layer in layers]
    return Plot("orders", "Mean size of every order of the series, by layer.", "order n", "log₁₀ of mean |Xⁿ/n!|", curves)
