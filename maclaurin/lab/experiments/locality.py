"""How much attention goes to the neighbours, and what it is worth: local mass and masks, on trained models."""

# B examples, H heads, T queries, S keys

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import Mean
from maclaurin.lab.result import Curve, Grid, Part, Plot, Result
from maclaurin.lab.traces import Traced, models
from maclaurin.mixers import weights

PAPER = "InLine, arXiv 2412.06590, in words"
ROWS = {name: one(name) for name in ("softmax", "linear")}
ROWS |= {"inline-no-filter": one("inline", local_residual=False), "inline": one("inline")}
NEAR = 3  # the square, or the last tokens, whose mass is counted
NOTES = (
    "A hidden key is one that never was: the other weights are those of the mechanism without it. InLine's local "
    "filter is no part of the weights and is not hidden.",
    "The paper's figures, of DeiT-T on ImageNet, were not found; in an image of 8 x 8 pixels little is far away.",
)


def locality(
    *,
    quick: bool = False,
    seed: int = 0,
    widths: tuple[int, ...] = (3, 5, 7),
    checkpoint: str | None = None,
    text: str | None = None,
    steps: int | None = None,
    draws: int | None = None,
) -> Result:
    """How much attention goes to the neighbours, and what is lost if they are hidden? On trained models.

    widths: sides of the squares of an image (odd), or numbers of the last tokens of a text, that are hidden.
    checkpoint: the folder of a language model to look into, instead of vision models trained here on digits.
    text: what it reads, a file, folder or corpus; by default validation text of its own or of the standard library.
    steps: of the training. draws: of the random masks.
    """
    if not widths or any(width < 1 or (checkpoint is None and width % 2 == 0) for width in widths):
        raise ValueError(f"widths must be odd sides of squares, or numbers of tokens of a text, got {widths}")
    steps = (250 if quick else 1000) if steps is None else steps
    draws = (2 if quick else 5) if draws is None else draws
    examples = 8 if checkpoint is not None else 120 if quick else 360
    rows = {name: row for name, row in ROWS.items() if not quick or name != "inline"}
    tokens = max(64, 8 * max(widths))
    traced = models(rows, checkpoint, text, steps=steps, seed=seed, examples=examples, tokens=tokens)
    masses = [local_mass(each) for each in traced]
    masked = [masking(each, widths, seed=seed, draws=draws) for each in traced]
    settings: dict[str, Any] = {"model": checkpoint or "digits, 2 layers of width 32", "examples": examples}
    trained = {} if checkpoint else {"steps": steps}
    settings |= {"widths": list(widths), **trained, "random masks": draws, "seed": seed}
    parts = [Part(claims_of(masses, masked, widths)), _mass_part(masses), _mask_part(masked, widths)]
    return Result.of("locality", "How much attention goes to the neighbours, and what is it worth?", settings, parts, NOTES)


@dataclass(frozen=True)
class Masses:
    """By layer: the share of the weights, by their size, on the neighbourhood. chance: what uniform weights give."""

    name: str
    layers: list[float]
    chance: float


@dataclass(frozen=True)
class Masked:
    """Accuracy with nothing hidden, and by width with the neighbourhood or as many random keys hidden in every layer."""

    name: str
    whole: float
    local: list[float]
    random: list[float]
    lost: list[float]  # how much more a local mask costs than a random one
    errors: list[float]  # the standard errors of that over the examples


def near_and_seen(traced: Traced, width: int) -> tuple[Tensor, Tensor]:
    """Which keys (T, S) are near a query: a square of an image, the last tokens of a text; which it sees: all, the past."""
    seen_TS = torch.ones(traced.tokens, traced.tokens, dtype=torch.bool, device="cpu")
    if traced.grid is None:
        return weights.last_tokens(traced.tokens, width), seen_TS.tril()
    return weights.neighbours(traced.grid, width), seen_TS


def mass(weight_TS: Tensor, near_TS: Tensor) -> Tensor:
    """The share of weights (..., T, S) on the near keys, by absolute value because weights may be negative: (..., T)."""
    size = weight_TS.abs()
    return (size * near_TS).sum(-1) / size.sum(-1).clamp(min=1e-300)


@torch.no_grad()
def local_mass(traced: Traced, width: int = NEAR) -> Masses:
    """The mean over examples, heads and queries. In a text, queries are those that have seen twice as many tokens."""
    near_TS, seen_TS = near_and_seen(traced, width)
    counted = slice(0 if traced.grid is not None else 2 * width, None)
    layers = [mass(layer.weights(), near_TS)[..., counted].mean().item() for layer in traced.layers()]
    return Masses(traced.name, layers, mass(seen_TS.double(), near_TS)[counted].mean().item())


@torch.no_grad()
def masking(traced: Traced, widths: Sequence[int], *, seed: int, draws: int) -> Masked:
    """Hide keys from the queries of every layer at test time. Random masks are drawn anew for every layer, `draws` times."""
    generator = torch.Generator().manual_seed(seed)

    def of_width(width: int) -> tuple[float, ...]:
        near_TS, seen_TS = near_and_seen(traced, width)
        if traced.grid is None:  # something stays to be seen
            near_TS = near_TS & (torch.arange(traced.tokens, dtype=torch.long, device="cpu") >= 2 * width)[:, None]
        with traced.hiding(lambda: near_TS):
            near_N = traced.run().double()
        with traced.hiding(lambda: weights.random_of_equal_number(near_TS, seen_TS, generator)):
            random_N = torch.stack([traced.run().double() for _ in range(draws)]).mean(0)
        return near_N.mean().item(), random_N.mean().item(), *astuple(Mean.of(random_N - near_N))

    local, random, lost, errors = map(list, zip(*map(of_width, widths), strict=True))
    return Masked(traced.name, traced.run().double().mean().item(), local, random, lost, errors)


def claims_of(masses: Sequence[Masses], masked: Sequence[Masked], widths: Sequence[int]) -> list[claims.Claim]:
    """The paper's four statements about softmax, linear and InLine, where all three are there."""
    mass, lost = {each.name: each for each in masses}, {each.name: each for each in masked}
    if any(name not in mass for name in ("softmax", "linear", "inline-no-filter")):
        why = "needs a softmax, a linear and an InLine model"
        return [claims.not_applicable("locality", "softmax attends to neighbours, linear and InLine do not", why, PAPER)]

    def times_chance(name: str) -> float:
        return mass[name].layers[0] / mass[name].chance

    widest = max(range(len(widths)), key=lambda index: widths[index])
    softmax, linear = lost["softmax"].lost[widest], lost["linear"].lost[widest]
    sure = softmax / max(lost["softmax"].errors[widest], 1e-12)
    beyond = "softmax: accuracy lost under the widest local mask beyond a random one of equal size, in standard errors"
    order = "softmax loses more by local masks, beyond random ones, than linear attention"
    both = f"{softmax:.3f} against {linear:.3f}"
    return [
        claims.at_least("mass softmax", "softmax, first layer: local mass over chance", times_chance("softmax"), 1.5, PAPER),
        claims.between("mass linear", "linear, first layer: the same", times_chance("linear"), 0.67, 1.5, PAPER),
        claims.between("mass inline", "InLine, first layer: the same", times_chance("inline-no-filter"), 0.67, 1.5, PAPER),
        claims.at_least("mask softmax", beyond, sure, 2.0, PAPER),
        claims.true("mask order", order, both, softmax > linear, source=PAPER),
    ]


def _mass_part(masses: Sequence[Masses]) -> Part:
    depth = max(len(each.layers) for each in masses)
    title = f"Mass on the square of side {NEAR} of an image, or the last {NEAR} tokens of a text"
    columns = ("model", "chance", *(f"layer {n}" for n in range(depth)))
    curves = [Curve(each.name, list(range(len(each.layers))), each.layers) for each in masses]
    chance = Curve("chance", [0, max(depth - 1, 1)], [masses[0].chance] * 2, dashed=True)
    caption = "Share of the weights on the nearest keys, by layer."
    grid = Grid(title, columns, [(each.name, each.chance, *each.layers) for each in masses])
    return Part([], [grid], [Plot("mass", caption, "layer", "local mass", [*curves, chance])])


def _mask_part(masked: Sequence[Masked], widths: Sequence[int]) -> Part:
    columns = [f"{kind} {width}" for width in widths for kind in ("local", "random")]
    rows = [(each.name, each.whole, *chain(*zip(each.local, each.random, strict=True))) for each in masked]
    curves = []
    for each in masked:
        low, high = ([a + sign * b for a, b in zip(each.lost, each.errors, strict=True)] for sign in (-1, 1))
        curves.append(Curve(each.name, list(widths), each.lost, low, high))
    caption = (
        "Accuracy lost by hiding the neighbours beyond that lost by hiding as many random keys; bars are standard errors."
    )
    grid = Grid("Accuracy with keys hidden at test time, by width", ("model", "nothing hidden", *columns), rows)
    return Part([], [grid], [Plot("masks", caption, "width of the mask", "accuracy lost to local masks", curves)])
