"""Statistics over runs, computed once: the table on the screen, compare.json and the page read the same record."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from maclaurin.training.contenders import CONTENDERS
from maclaurin.training.model_size import layers, parameters, state_nbytes
from maclaurin.training.recipe import Recipe


@dataclass(frozen=True)
class Figures:
    """The figures of one finished run; what was not measured is None."""

    held_out_loss: float
    tokens_per_second: float | None
    peak_bytes: float | None
    load: float | None = None


@dataclass(frozen=True)
class Standing:
    """Over the seeds of one mixer and recipe: mean and standard deviation of the loss, median speed, largest peak memory.

    speeds: the quartiles of the speed, or both ends where there are fewer than four runs; None of one run.
    load: the median load of the machine after the runs.
    """

    name: str
    seeds: int
    loss: float | None
    spread: float | None
    tokens_per_second: float | None
    peak_bytes: int | None
    parameters: int
    state_bytes_at_8k: int
    published: str
    rank: int | None = None
    speeds: tuple[float, float] | None = None
    load: float | None = None


@dataclass(frozen=True)
class Gap:
    """The gap between two losses. within_chance: whether it is within both spreads together; None if one is not known."""

    nats: float
    share: float
    within_chance: bool | None


def standing(name: str, recipe: Recipe, runs: Sequence[Figures], *, contender: str) -> Standing:
    """contender: one of `maclaurin compare`, whose published loss is included; other names have none."""
    losses = [run.held_out_loss for run in runs]
    speeds = [run.tokens_per_second for run in runs if run.tokens_per_second is not None]
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    loads = [run.load for run in runs if run.load is not None]
    return Standing(
        name,
        seeds=len(runs),
        loss=statistics.mean(losses) if losses else None,
        spread=statistics.stdev(losses) if len(losses) > 1 else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        peak_bytes=int(max(peaks)) if peaks else None,
        parameters=parameters(recipe),
        state_bytes_at_8k=state_nbytes(layers(recipe), 8192),
        published=CONTENDERS[contender].published if contender in CONTENDERS else "",
        speeds=_ends(speeds),
        load=statistics.median(loads) if loads else None,
    )


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ranked(rows: Iterable[Standing]) -> list[Standing]:
    """The best first; those without a result come last, and have no rank."""
    ordered = sorted(rows, key=lambda row: math.inf if row.loss is None else row.loss)
    return [row if row.loss is None else dataclasses.replace(row, rank=rank) for rank, row in enumerate(ordered, 1)]


def gap(first: Standing, second: Standing) -> Gap:
    """The gap between two standings that have a result."""
    assert first.loss is not None and second.loss is not None
    nats = second.loss - first.loss
    chance = None
    if first.spread is not None and second.spread is not None:
        chance = nats <= math.hypot(first.spread, second.spread)
    return Gap(nats, nats / second.loss if second.loss else 0.0, chance)
