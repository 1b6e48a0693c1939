"""Softmax as a sum of recurrent networks, one per order of the exponential's series (arXiv 2507.23632).

What an order is worth is seen in tiny byte-level language models of the standard library, all with the same budget.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.data import open_corpus
from maclaurin.data.tasks import Batch, Task
from maclaurin.evals.cells import Cell, Row, Setting
from maclaurin.evals.learn import TEST_SEED, train
from maclaurin.evals.models import build
from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import generator, normal
from maclaurin.lab.experiments.series import orders as exponential
from maclaurin.lab.experiments.series.orders import LayerOrders, Truncation, of_gaussian
from maclaurin.lab.result import Curve, Grid, Part, Plot, Result
from maclaurin.lab.traces import checkpoint as open_checkpoint
from maclaurin.lab.traces import of_tokens
from maclaurin.mixers.attention import NORMS
from maclaurin.ops.features import monomial_count

PAPER = "arXiv 2507.23632"
DOCUMENTS = {"train": 200, "held-out": 20}
TEST_WINDOWS = 64
LENGTH = 64  # of a window
LEARNING_RATE = 1e-2
SPREADS = (0.5, 1.0, 2.0, 4.0)  # standard deviations of scores
MOST_ORDERS = 40
DRAWS, MOST_NEEDED = 10, 60  # inputs for which the orders needed are counted, and how far
CHECKED_ORDERS, SHOWN = (0, 1, 2, 3), (1, 2, 3, 4, 6, 8, 10, 20)
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
    seeds: int = 3,
    width: int = 32,
    norm: str = "sum",
    tokens: int = 128,
    texts: int = 8,
) -> Result:
    """Softmax as a sum of recurrent networks, one per order of the series of exp (arXiv 2507.23632).

    checkpoint: folder of a language model whose dominant orders are asked for, and nothing is trained; otherwise the
    softmax model trained here
    orders: P of the Taylor models that are trained, with terms 0 to P; 1 to 10, with quick 1 to 4
    steps, seeds, width: budget of each; 300 steps, with quick 100
    norm: of the Taylor models, "sum" of the weights or "output", an RMS norm that does not mind negative weights
    text: what it reads, a file, folder or corpus; by default validation text of its own or of the standard library
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
    found = {spread: exponential.truncations(spread, range(1, MOST_ORDERS + 1), 256, 16, seed) for spread in SPREADS}
    parts = [identity_part(seed), truncation_part(found, seed), layer_part(exponential.layer_orders(traced), seed)]
    settings = {"model": traced.name} | settings | {"seed": seed}
    title = "Softmax as a sum of recurrent networks of every order"
    return Result.of("series", title, settings, [*parts, *([study.part()] if study else ())], NOTES)


def identity_part(seed: int, coefficient: exponential.Coefficient = exponential.taylor_coefficient) -> Part:
    """Every order as a network, and their sum with any coefficients, which is softmax for 1/n! and no others."""
    errors = {order: exponential.check_order(order, TOKENS, DIM, 1.0, seed) for order in CHECKED_ORDERS}
    numerator, weights = exponential.check_sum(MOST_ORDERS, TOKENS, DIM, 1.0, seed, coefficient)
    agree = "order {0}: T x T matrix, op's state and state of d^{0} rows agree; relative distance"
    text = f"orders 0 to {MOST_ORDERS} add up to the numerator of softmax: relative distance"
    divided = "the same divided by its own sum is softmax: relative distance"
    made = [
        *(claims.at_most("P1.1", agree.format(order), error, EXACT, PAPER) for order, error in errors.items()),
        claims.at_most("P1.1 sum", text, numerator, EXACT, PAPER),
        claims.at_most("P1.1 softmax", divided, weights, EXACT, PAPER),
    ]
    columns = ("order", f"rows dⁿ, d = {DIM}", "different ones", "at d = 64: dⁿ", "different ones", "relative distance")
    sizes = {n: (DIM**n, monomial_count(DIM, n), 64**n, monomial_count(64, n)) for n in errors}
    title = "One recurrent network per order: rows of its state, and how far its three forms are apart"
    return Part(made, [Grid(title, columns, [(order, *sizes[order], error) for order, error in errors.items()])])


def truncation_part(found: dict[float, list[Truncation]], seed: int = 0) -> Part:
    text = "error of orders 1 to {}, scores of spread {:g}: largest multiple of its Lagrange bound"
    worst = {spread: max(one.over_bound for one in rests) for spread, rests in found.items()}
    even, odd = (max(one.broken for rests in found.values() for one in rests if one.order % 2 == rest) for rest in (0, 1))
    made = [
        *(claims.at_most("bound", text.format(MOST_ORDERS, spread), share, 1.0) for spread, share in worst.items()),
        claims.at_most("even", "even orders: queries with a negative weight, largest share", even, 0.0),
        claims.at_least("odd", "odd orders: the same, largest share; they do have them", odd, 0.01),
    ]
    columns = ("spread of scores", *(f"P = {order}" for order in SHOWN), "1 % from P", "0.1 % from P")
    seeds = range(seed, seed + DRAWS)
    rows: list[list[object]] = []
    errors, moved = [], []
    for spread, rests in found.items():
        name, x, elsewhere = f"spread {spread:g}", [one.order for one in rests], {one.order: one.moved for one in rests}
        counts = (exponential.orders_needed(spread, share, 256, 16, seeds, MOST_NEEDED) for share in (0.01, 0.001))
        needed = [_needed(count) for count in counts]
        rows.append([spread, *(elsewhere[order] for order in SHOWN), *needed])
        errors.append(Curve(name, x, [one.error for one in rests]))
        errors.append(Curve(name, x, [max(one.bound, FLOOR) for one in rests], dashed=True))
        moved.append(Curve(name, x, [max(one.moved, FLOOR) for one in rests]))
    caption = "Largest error of exp(s) by orders 0 to P, and, dotted, the largest Lagrange bound."
    plots = [
        Plot("truncation", caption, "P", "error of exp(s)", errors, log_y=True),
        Plot("moved", "Weight that lies elsewhere than in softmax.", "P", "share of weight", moved, log_y=True),
    ]
    title = (
        "Weight that orders 0 to P put elsewhere than softmax, mean over queries; from which P on it is below a share: "
        f"median and range over {DRAWS} draws"
    )
    return Part(made, [Grid(title, columns, rows)], plots)


def _needed(orders: Sequence[int]) -> str:
    """Median and range of what several draws need."""
    low, high = orders[0], orders[-1]
    return f"{statistics.median_low(orders)} ({low}–{high})" if high <= MOST_NEEDED else f"{low} to above {MOST_NEEDED}"


def layer_part(layers: Sequence[LayerOrders], seed: int, scale: float = 1.0) -> Part:
    """The probe on Gaussian scores, whose answer is known, and on the layers of the model. scale: of those scores."""
    scores = 2 * scale * normal(1, 1, 512, 512, generator=generator(seed))
    measured = exponential.orders_of_scores(0, "gaussian", scores).dominant
    text = "dominant order of Gaussian scores of variance 4, by the probe"
    dominant = [layer.dominant for layer in layers]
    made = [
        claims.near("probe", text, measured, of_gaussian(4.0), 1.0),
        claims.at_least("P1.8", "lowest dominant order of a layer of this model; above 1", min(dominant), 2.0, PAPER),
    ]
    columns = ("layer", "mixer", "dominant order", "by query: 25 %", "50 %", "75 %", "variance", "largest", "if Gaussian")
    rows = [
        (one.layer, one.mixer, one.dominant, *one.by_query, one.variance, one.largest, of_gaussian(one.variance))
        for one in layers
    ]
    last = min(max(2 * max(dominant) + 10, 15), exponential.ORDERS)
    terms = {one.layer: [term / math.log(10) for term in one.log_terms[:last]] for one in layers}
    curves = [Curve(f"layer {layer}", list(range(last)), of_layer) for layer, of_layer in terms.items()]
    plot = Plot("orders", "Mean size of every order of the series, by layer.", "order n", "log₁₀ of mean |Xⁿ/n!|", curves)
    title = "Which order weighs most, by layer; variance and largest size of its scores"
    return Part(made, [Grid(title, columns, rows)], [plot])


@dataclass(frozen=True)
class Bytes(Task[Batch]):
    """Windows of the text of a split; at every byte the next one is asked for."""

    split: str
    length: int = LENGTH

    @property
    def vocab_size(self) -> int:
        return 256

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        text = _text(self.split)
        starts = rng.integers(len(text) - self.length, size=count)
        ids = torch.from_numpy(text[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))
        return Batch(ids[:, :-1], ids[:, 1:])

    def test(self, count: int) -> Tensor:
        """The same windows every time, with the byte behind each: (count, length + 1)."""
        drawn = self.sample(count, TEST_SEED)
        return torch.cat([drawn.tokens, drawn.targets[:, -1:]], dim=1)


@lru_cache
def _text(split: str) -> np.ndarray[Any, Any]:
    documents = open_corpus("stdlib").documents(split)
    return np.frombuffer("\n".join(islice(documents, DOCUMENTS[split])).encode(), dtype=np.uint8)


@dataclass(frozen=True)
class Trained:
    """loss: nats per byte of validation text; infinite if training broke off at a loss that is no number."""

    model: Any
    loss: float


def budget(width: int, steps: int) -> Setting:
    """The same for all models, and with one seed the same text in the same order."""
    return Setting(width=width, heads=2, layers=2, inner=2 * width, steps=steps, batch=16)


def trained(row: Row, setting: Setting, seed: int) -> Trained:
    torch.manual_seed(seed)
    task = Bytes("train")
    model = build(row, setting, task)
    _, diverged = train(model, Cell("lab", "series", row, setting, (), (), LEARNING_RATE, seed), [task])
    with torch.no_grad():
        loss = cross_entropy(*model.eval()(Bytes("held-out").sample(TEST_WINDOWS, TEST_SEED)))
    return Trained(model.model, math.inf if diverged else loss.item())


@dataclass(frozen=True)
class Study:
    """Softmax and Taylor models of the same size, text and number of steps, one per seed."""

    softmax: list[Trained]
    by_order: dict[int, list[Trained]]

    def part(self) -> Part:
        softmax, losses = _range(self.softmax), {order: _range(runs) for order, runs in sorted(self.by_order.items())}
        means = [mean for mean, _, _ in losses.values()]
        first, last = min(losses), max(losses)
        gap, left = means[0] - softmax[0], means[-1] - softmax[0]
        pairs = zip(self.by_order[first], self.softmax, strict=True)  # of one seed: the same text in the same order
        lowest = min(own.loss - others.loss for own, others in pairs)
        over = f"lowest of {len(self.softmax)} seeds"
        falling, seen = all(b <= a for a, b in pairwise(means)), " ".join(f"{loss:.3f}" for loss in means)
        made = [
            claims.at_least(
                "P1.2", f"loss of order {first} above that of softmax with its seed, {over}", lowest, 0.0, PAPER
            ),
            claims.at_most("P1.2", f"of that gap, the share that is left at order {last}", left / gap, 0.25, PAPER),
            claims.true("P1.2", "every further order lowers the loss", seen, falling, "falling", PAPER),
        ]
        rows = [(f"order {order}", *loss) for order, loss in losses.items()] + [("softmax", *softmax)]
        _, lows, highs = zip(*losses.values(), strict=True)
        flat = Curve("softmax", [first, last], [softmax[0]] * 2, dashed=True)
        curves = [Curve("orders 0 to P", list(losses), means, lows, highs), flat]
        several = len(self.softmax) > 1
        over = "range over seeds" if several else "one seed"
        plot = Plot("loss", f"Validation loss by the highest order; {over}.", "P", "nats per byte", curves)
        title = f"Validation loss, nats per byte, {'mean and ' * several}{over}"
        return Part(made, [Grid(title, ("model", "loss", "lowest", "highest"), rows)], [plot])


def order_study(orders: Sequence[int], setting: Setting, seeds: int, seed: int, norm: str = "sum") -> Study:
    def runs(row: Row) -> list[Trained]:
        return [trained(row, setting, number) for number in range(seed, seed + seeds)]

    return Study(runs(one("softmax")), {order: runs(one("taylor", order=order, norm=norm)) for order in orders})


def _range(runs: Sequence[Trained]) -> tuple[float, float, float]:
    """Mean, lowest and highest loss."""
    losses = [run.loss for run in runs]
    return statistics.fmean(losses), min(losses), max(losses)
