"""Does the published order of the rows hold here, and with which confidence?

Every two rows with different published numbers are a pair. A pair holds in the mean if the means over seeds are in the
published order. It is decided if the 95 % interval of the difference, seed by seed, leaves out 0 (Student's t), because
all rows of a seed have seen the same data in the same order. tau is Kendall's: the share of pairs that hold in the mean
minus the share that do not; its interval is the bootstrap over seeds, all rows drawn together.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maclaurin.common.intervals import mean_interval
from maclaurin.common.records import Record
from maclaurin.evals.results import ResultRow, ResultTable
from maclaurin.reproduce.table import Table

RESAMPLES = 2000

BySeed = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Answer(Record):
    """How far a row is above another with the same seeds: mean and 95 % interval here, and in the paper if it says so."""

    row: str
    other: str
    difference: float
    low: float | None
    high: float | None
    published: float | None


@dataclass(frozen=True)
class Verdict(Record):
    """Of `pairs` with a published order, `agree` hold in the mean; `held` and `reversed` are decided, the others are not.

    sentence: all of it in words. contradicted: the pairs that are reversed, the one that should be better first.
    """

    word: str
    sentence: str
    pairs: int
    agree: int
    held: int
    reversed: int
    tau: float | None
    low: float | None
    high: float | None
    contradicted: Sequence[tuple[str, str]]
    answers: Sequence[Answer]


def verdict(table: Table, found: ResultTable) -> Verdict:
    lower = found.lower_is_better
    values = {row.label: by_seed(row) for row in found.measured() if row.seeds == found.seeds}
    # published numbers are losses, accuracies or places: the first place is the best
    better_is_lower = lower or table.in_words
    ranked = sorted((label for label in table.published if label in values), key=table.published.__getitem__)
    pairs = [
        (first, second) if better_is_lower else (second, first)
        for first, second in itertools.combinations(ranked, 2)
        if table.published[first] != table.published[second]
    ]
    answers = [_answer(table, values, *asked) for asked in table.asks if set(asked) <= set(values)]
    if not pairs:
        why = "no order is published" if len(table.published) < 2 else "too few rows are done"
        return Verdict("none", f"There is nothing to hold: {why}.", 0, 0, 0, 0, None, None, None, (), answers)
    gains = {pair: _gains(values, *pair, lower=lower) for pair in pairs}  # above 0: as published
    agree = sum(statistics.fmean(gain) > 0 for gain in gains.values())
    intervals = {pair: mean_interval(gain) for pair, gain in gains.items()}
    held = [pair for pair, ends in intervals.items() if ends is not None and ends[0] > 0]
    contradicted = [pair for pair, ends in intervals.items() if ends is not None and ends[1] < 0]
    tau, low, high = _tau(np.array([gains[pair] for pair in pairs]))
    word = _word(len(pairs), agree, len(held), len(contradicted))
    sentence = (
        f"The published order {word}: {agree} of {len(pairs)} pairs hold in the mean (Kendall's tau {tau:+.2f}, "
        f"{low:+.2f} to {high:+.2f} over seeds); beyond their 95 % intervals {len(held)} hold, {len(contradicted)} are "
        f"reversed, {len(pairs) - len(held) - len(contradicted)} are not decided."
    )
    return Verdict(word, sentence, len(pairs), agree, len(held), len(contradicted), tau, low, high, contradicted, answers)


def by_seed(row: ResultRow) -> list[float]:
    """The mean over its tests, seed by seed."""
    return [statistics.fmean(values) for values in zip(*(point.by_seed for point in row.points), strict=True)]


def _gains(values: BySeed, better: str, worse: str, *, lower: bool) -> list[float]:
    sign = -1 if lower else 1
    return [sign * (own - other) for own, other in zip(values[better], values[worse], strict=True)]


def _tau(gains_PS: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Of pairs by seeds: the mean over pairs of the sign of the mean over seeds, and its interval."""
    seeds = gains_PS.shape[1]
    draws = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    taus = np.sign(gains_PS[:, draws].mean(-1)).mean(0)
    low, high = np.quantile(taus, (0.025, 0.975))
    return float(np.sign(gains_PS.mean(1)).mean()), float(low), float(high)


def _word(pairs: int, agree: int, held: int, contradicted: int) -> str:
    if held == pairs:
        return "holds"
    if not contradicted:
        return "holds as far as it is decided" if held else "is not decided"
    return "holds in part" if held > contradicted else "does not hold"


def _answer(table: Table, values: BySeed, row: str, other: str) -> Answer:
    differences = [own - others for own, others in zip(values[row], values[other], strict=True)]
    low, high = mean_interval(differences) or (None, None)
    known = not table.in_words and {row, other} <= set(table.published)
    published = table.published[row] - table.published[other] if known else None
    return Answer(row, other, statistics.fmean(differences), low, high, published)


def answer_text(answer: Answer) -> str:
    """`2Mamba − Softmax: +0.012 (-0.003 to +0.027); published -0.004`"""
    here = f"{answer.row} − {answer.other}: {answer.difference:+.3f}"
    ends = "" if answer.low is None else f" ({answer.low:+.3f} to {answer.high:+.3f})"
    return here + ends + ("; not published" if answer.published is None else f"; published {answer.published:+.3f}")
