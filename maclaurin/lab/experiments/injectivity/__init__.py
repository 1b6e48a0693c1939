"""Do two queries get the same weights? InLine's argument against dividing by a sum, checked."""

from __future__ import annotations

from typing import Any

from maclaurin.common.arguments import at_least
from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.injectivity.collisions import Draw, all_checks, first_order_errors
from maclaurin.lab.experiments.injectivity.queries import SAME, TOLERANCES, Confusion, confusion, told_apart
from maclaurin.lab.result import Curve, Grid, Plot, Result
from maclaurin.lab.traces import models
from maclaurin.mixers.registry import available_mixers

PAPER = "InLine, arXiv 2412.06590, in words"
ROWS = {"softmax": one("softmax"), "linear": one("linear"), "inline": one("inline")}
FACTORS = [2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
NOTES = (
    "Injective means that no two queries are confused in exact arithmetic. How far apart their weights are is "
    "another matter: InLine's differ by σ_min·scale/N at least, which shrinks with the number of keys.",
    "A norm of the output undoes a query's length just as a sum of the weights does: mixers with one confuse rays.",
    "The paper counts confusions in DeiT-T on ImageNet; its tolerance and counts were not found.",
)


def injectivity(
    *,
    quick: bool = False,
    seed: int = 0,
    keys: int = 50,
    dim: int = 8,
    ties: bool = False,
    inline_scale: float | None = None,
    checkpoint: str | None = None,
    text: str | None = None,
    steps: int | None = None,
) -> Result:
    """Do two queries get the same weights? Constructed collisions, a bound, every mixer, and a trained model's queries.

    keys, dim: of the random cases. ties: one channel the same in all keys, with which no mechanism can be injective.
    inline_scale: of InLine's scores; 1/√dim unless given, with which it is the first order of softmax.
    checkpoint: the folder of a language model to look into, instead of vision models trained here on digits.
    text: what it reads, a file, folder or corpus; by default held-out text of its own or of the standard library.
    steps: of the training.
    """
    at_least(2, "dim", dim)
    at_least(dim + 2, "keys", keys)
    if steps is None:
        steps = 250 if quick else 1000
    draw = Draw.of(keys, dim, seed, ties=ties, inline_scale=inline_scale)
    examples = 40 if quick else 360
    traced = models(ROWS, checkpoint, text, steps=steps, seed=seed, examples=examples, tokens=256)
    found = [confusion(each) for each in traced]
    settings: dict[str, Any] = {"keys": keys, "dim": dim, "ties": ties, "inline_scale": draw.inline_scale, "seed": seed}
    settings |= {"model": checkpoint or "digits, 2 layers of width 32", "examples": examples}
    return Result(
        "injectivity",
        "Do two queries get the same weights?",
        settings | ({} if checkpoint else {"steps": steps}),
        [*all_checks(draw), *claims_of(found, checkpoint)],
        [_mixer_grid(seed), _confusion_grid(found)],
        [_first_order_plot(draw), _tolerance_plot(found)],
        NOTES,
    )


def claims_of(found: list[Confusion], checkpoint: str | None) -> list[Claim]:
    """What the paper says of softmax, linear and InLine, where all three are there."""
    if checkpoint is not None:
        return [claims.not_applicable("confusion", "softmax ≈ none, linear many, InLine far fewer", "one model only", PAPER)]
    by_name = {each.name: each for each in found}
    softmax, linear, inline = (by_name[name].pairs / by_name[name].of for name in ROWS)
    fewer = "trained InLine: share of pairs confused over that of linear attention"
    return [
        claims.at_most("confusion softmax", "trained softmax: share of pairs confused, next to none", softmax, 0.01, PAPER),
        claims.at_least("confusion linear", "trained linear: the same, many", linear, 0.1, PAPER),
        claims.at_most("confusion inline", fewer, inline / linear, 0.2, PAPER)
        if linear >= 1e-3
        else claims.not_applicable("confusion inline", fewer, f"linear confuses next to none, {linear:.2g}", PAPER),
    ]


def _mixer_grid(seed: int) -> Grid:
    found = {name: changes for name in available_mixers() if (changes := told_apart(name, seed=seed)) is not None}
    rows = []
    for name, changes in found.items():
        confused = [pair.split(",")[0] for pair, change in changes.items() if change < SAME]
        rows.append((name, *changes.values(), ", ".join(confused) or "none"))
    title = "Every mixer with queries and keys: relative change of its heads' output between two queries"
    return Grid(title, ("mixer", *next(iter(found.values())), "confused"), rows)


def _confusion_grid(found: list[Confusion]) -> Grid:
    depth = max(len(each.layers) for each in found)
    layers = [f"share, layer {layer}" for layer in range(depth)]
    rows = [(each.name, each.pairs, each.of, *each.layers) for each in found]
    return Grid("Confused pairs of queries an example, at tolerance 1e-3", ("model", "confused", "pairs", *layers), rows)


def _first_order_plot(draw: Draw) -> Plot:
    errors = first_order_errors(draw, FACTORS)
    square = [errors[-1] * (factor / FACTORS[-1]) ** 2 for factor in FACTORS]
    curves = [Curve("softmax − InLine", FACTORS, errors), Curve("a square", FACTORS, square, dashed=True)]
    caption = (
        "Softmax minus InLine, the largest difference of a weight, against the size of the scores: second order is left."
    )
    return Plot("first-order", caption, "scores times", "largest difference", curves, log_x=True, log_y=True)


def _tolerance_plot(found: list[Confusion]) -> Plot:
    curves = [Curve(each.name, TOLERANCES, each.shares) for each in found]
    caption = (
        "Pairs of distinct queries of trained models whose weights are closer than a tolerance, as a share of all pairs."
    )
    return Plot("confusion", caption, "tolerance, relative to the weights", "share of pairs confused", curves, log_x=True)
