"""Statistics over runs, computed once: the table on the screen, compare.json and the page read the same record."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from maclaurin.common.intervals import mean_interval
from maclaurin.common.records import Record
from maclaurin.training.contenders import published
from maclaurin.training.model_size import layers, parameters, state_nbytes
from maclaurin.training.recipe import Recipe


@dataclass(frozen=True)
class Figures:
    """The figures of one finished run; what was not measured is None. held_out_loss: on the test part if it has one."""

    held_out_loss: float
    tokens_per_second: float | None
    peak_bytes: float | None
    load: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Difference:
    """How far a loss is above that of another row with the same seeds: the mean, and the ends of its 95 % interval, which
    one seed does not have.
    """

    to: str
    nats: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def level(self) -> bool | None:
        """Whether the interval has 0; None where there is none."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


@dataclass(frozen=True)
class Recall(Record):
    """Accuracies by number of pairs, with their 95 % intervals and what guessing one of the values of the prompt gives.

    state_bytes: the state of the small model for one sequence of the last of these tests.
    """

    pairs: tuple[int, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    chance: tuple[float, ...]
    state_bytes: int
    learning_rate: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracy)

    def checked(self) -> Recall:
        """Itself, if it has an accuracy for every number of pairs; a file may have anything."""
        numbers = [*self.accuracy, *self.low, *self.high, *self.chance]
        if not self.pairs or len(numbers) != 4 * len(self.pairs) or not all(0 <= number <= 1 for number in numbers):
            raise ValueError("recall must have accuracies from 0 to 1 for every number of pairs")
        if self.state_bytes < 0:
            raise ValueError(f"recall must have a state of 0 bytes or more, got {self.state_bytes}")
        return self


@dataclass(frozen=True)
class Standing:
    """Over the seeds of one mixer and recipe: mean and standard deviation of the loss, median speed, largest peak memory.

    by_seed: (seed, loss). behind: the difference to the first row. learning_rate: the one with the lowest validation loss of
    those tried, each (rate, validation loss of the first seed). speeds: the quartiles of the speed, or both ends where there
    are fewer than four runs; None of one run. load: the median load of the machine after the runs. recall, decode_ms: None
    where they were not measured; decode_ms is that of one token in all layers after 16k others, with its quartiles.
    state_grows: even between 8k and 1M tokens.
    """

    name: str
    seeds: int
    loss: float | None
    spread: float | None
    tokens_per_second: float | None
    peak_bytes: int | None
    parameters: int
    state_bytes_at_8k: int
    state_grows: bool
    published: str
    rank: int | None = None
    speeds: tuple[float, float] | None = None
    load: float | None = None
    by_seed: tuple[tuple[int, float], ...] = ()
    behind: Difference | None = None
    learning_rate: float | None = None
    tried: tuple[tuple[float, float], ...] = ()
    recall: Recall | None = None
    decode_ms: float | None = None
    decode_quartiles: tuple[float, float] | None = None


def standing(name: str, recipe: Recipe, runs: Sequence[Figures], *, tried: Mapping[float, float] | None = None) -> Standing:
    """tried: the validation losses of the learning rates, where there were several."""
    losses = [run.held_out_loss for run in runs]
    model = layers(recipe)
    state = state_nbytes(model, 8192)
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
        state_bytes_at_8k=state,
        state_grows=state_nbytes(model, 2**20) > state,
        published=published(recipe.mixer, recipe.options()),
        speeds=_ends(speeds),
        load=statistics.median(loads) if loads else None,
        by_seed=tuple(sorted((run.seed, run.held_out_loss) for run in runs)),
        learning_rate=recipe.learning_rate,
        tried=tuple(sorted((tried or {}).items())),
    )


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def best_rate(tried: Mapping[float, float]) -> float:
    """The learning rate with the lowest validation loss, the smaller of two equals."""
    return min(tried, key=lambda rate: (tried[rate], rate))


def ranked(rows: Iterable[Standing]) -> list[Standing]:
    """The best first, and how far the others are behind it; those without a result come last, and have no rank."""
    ordered = sorted(rows, key=lambda row: math.inf if row.loss is None else row.loss)
    return [
        row if row.loss is None else dataclasses.replace(row, rank=rank, behind=difference(row, ordered[0]))
        for rank, row in enumerate(ordered, 1)
    ]


def difference(row: Standing, other: Standing) -> Difference | None:
    """Seed by seed, since both have seen the same batches; over all of both where they have no seed in common."""
    assert row.loss is not None and other.loss is not None
    if row.name == other.name:
        return None
    others = dict(other.by_seed)
    pairs = [loss - others[seed] for seed, loss in row.by_seed if seed in others]
    if not pairs:
        return Difference(other.name, row.loss - other.loss, None, None, 0)
    low, high = mean_interval(pairs) or (None, None)
    return Difference(other.name, statistics.fmean(pairs), low, high, len(pairs))


def level(rows: Sequence[Standing]) -> list[Standing]:
    """The rows that are not known to be behind the first one: their interval has 0."""
    return [row for row in rows if row.behind is not None and row.behind.level]
