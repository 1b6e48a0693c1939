"""`maclaurin lab locality`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.checkpoints import models
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.locality.probes import Masked, Masses, local_mass, masking
from maclaurin.lab.result import Curve, Grid, Plot, Result

PAPER = "InLine, arXiv 2412.06590, in words"
ROWS = {
    "softmax": one("softmax"),
    "linear": one("linear"),
    "inline-no-filter": one("inline", local_residual=False),
    "inline": one("inline"),
}


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
    text: what it reads, a file, folder or corpus; by default held-out text of its own or of the standard library.
    steps: of the training.
    draws: of the random masks.
    """
    if not widths or any(width < 1 or (checkpoint is None and width % 2 == 0) for width in widths):
        raise ValueError(f"widths must be odd sides of squares, or numbers of tokens of a text, got {widths}")
    if steps is None:
        steps = 250 if quick else 1000
    if draws is None:
        draws = 2 if quick else 5
    examples = 8 if checkpoint is not None else 120 if quick else 360
    tokens = max(64, 8 * max(widths))
    rows = {name: row for name, row in ROWS.items() if not quick or name != "inline"}
    watched = models(rows, checkpoint, text, steps=steps, seed=seed, examples=examples, tokens=tokens)
    masses = [local_mass(each) for each in watched]
    masked = [masking(each, widths, seed=seed, draws=draws) for each in watched]
    settings: dict[str, Any] = {
        "model": checkpoint or "digits, 2 layers of width 32",
        "examples": examples,
        "widths": list(widths),
    }
    settings |= {} if checkpoint else {"steps": steps}
    settings |= {"random masks": draws, "seed": seed}
    return Result(
        "locality",
        "How much attention goes to the neighbours, and what is it worth?",
        settings,
        claims_of(masses, masked, widths),
        [_masses(masses), _masked(masked, widths)],
        [_mass_plot(masses), *_mask_plots(masked, widths)],
        [
            "A hidden key is one that never was: the other weights are those of the mechanism without it. InLine's local "
            "filter is no part of the weights and is not hidden.",
            "The paper's figures, of DeiT-T on ImageNet, were not found; in an image of 8 x 8 pixels little is far away.",
        ],
    )


def claims_of(masses: Sequence[Masses], masked: Sequence[Masked], widths: Sequence[int]) -> list[Claim]:
    """The paper's four statements about softmax, linear and InLine, where all three are there."""
    mass, lost = {each.name: each for each in masses}, {each.name: each for each in masked}
    if any(name not in mass for name in ("softmax", "linear", "inline-no-filter")):
        why = "needs a softmax, a linear and an InLine model"
        return [claims.not_applicable("locality", "softmax attends to neighbours, linear and InLine do not", why, PAPER)]

    def times_chance(name: str) -> float:
        return mass[name].layers[0] / mass[name].chance

    widest = max(range(len(widths)), key=lambda index: widths[index])
    softmax, linear = lost["softmax"].lost[widest], lost["linear"].lost[widest]
    return [
        claims.at_least("mass softmax", "softmax, first layer: local mass over chance", times_chance("softmax"), 1.5, PAPER),
        claims.between("mass linear", "linear, first layer: the same", times_chance("linear"), 0.67, 1.5, PAPER),
        claims.between("mass inline", "InLine, first layer: the same", times_chance("inline-no-filter"), 0.67, 1.5, PAPER),
        claims.at_least(
            "mask softmax",
            "softmax: accuracy lost under the widest local mask beyond a random one of equal size, in standard errors",
            softmax / max(lost["softmax"].errors[widest], 1e-12),
            2.0,
            PAPER,
        ),
        claims.true(
            "mask order",
            "softmax loses more by local masks, beyond random ones, than linear attention",
            f"{softmax:.3f} against {linear:.3f}",
            softmax > linear,
            source=PAPER,
        ),
    ]


def _masses(masses: Sequence[Masses]) -> Grid:
    depth = max(len(each.layers) for each in masses)
    rows: list[tuple[str | float, ...]] = [(each.name, each.chance, *each.layers) for each in masses]
    return Grid("Mass on the 3 nearest each way", ("model", "chance", *(f"layer {n}" for n in range(depth))), rows)


def _masked(masked: Sequence[Masked], widths: Sequence[int]) -> Grid:
    columns = [f"{kind} {width}" for width in widths for kind in ("local", "random")]
    rows: list[tuple[str | float, ...]] = [
        (each.name, each.whole, *(value for pair in zip(each.local, each.random, strict=True) for value in pair))
        for each in masked
    ]
    return Grid("Accuracy with keys hidden at test time, by width", ("model", "nothing hidden", *columns), rows)


def _mass_plot(masses: Sequence[Masses]) -> Plot:
    depth = max(len(each.layers) for each in masses)
    curves = [Curve(each.name, list(range(len(each.layers))), each.layers) for each in masses]
    chance = Curve("chance", [0, max(depth - 1, 1)], [masses[0].chance] * 2, dashed=True)
    return Plot("mass", "Share of the weights on the nearest keys, by layer.", "layer", "local mass", [*curves, chance])


def _mask_plots(masked: Sequence[Masked], widths: Sequence[int]) -> list[Plot]:
    curves = []
    for each in masked:
        pairs = list(zip(each.lost, each.errors, strict=True))
        low, high = ([value + sign * error for value, error in pairs] for sign in (-1, 1))
        curves.append(Curve(each.name, list(widths), each.lost, low, high))
    caption = (
        "Accuracy lost by hiding the neighbours beyond that lost by hiding as many random keys; bars are standard errors."
    )
    return [Plot("masks", caption, "width of the mask", "accuracy lost to local masks", curves)]
