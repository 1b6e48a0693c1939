"""From outcomes to a table: the best learning rate of each model, and the intervals of its accuracies.

The learning rate of a model is the one with the best mean validation over seeds, the smaller of two equals: the highest
accuracy, or the lowest loss where the metric is the loss. Tests have no part in it.

With one seed an interval is Wilson's over the examples of the test: an accuracy with several answers per example varies no
more than one with one answer, so the interval is conservative. With several seeds it is the wider of Wilson's over the
examples of all seeds and the bootstrap of the mean over seeds. Of a loss it is the normal interval of the mean over
examples, where an accuracy has Wilson's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from maclaurin.common.intervals import CONFIDENCE_Z, wilson
from maclaurin.evals.cells import Cell, Problem
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.results import Against, Asked, Bucket, Point, ResultRow, ResultTable, Tried
from maclaurin.evals.runner import load

RESAMPLES = 10_000


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap 95 % interval of the mean; the same draws every time."""
    draws = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(draws.mean(1), (0.025, 0.975))
    return float(low), float(high)


def interval(values: Sequence[float], examples: int) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds of values, each over `examples` examples."""
    return _wider(values, *wilson(statistics.fmean(values), examples * len(values)))


def loss_interval(values: Sequence[float], deviations: Sequence[float], examples: int) -> tuple[float, float]:
    """The same of losses with these standard deviations over the examples, which are the same for all seeds."""
    mean, half = statistics.fmean(values), CONFIDENCE_Z * statistics.fmean(deviations) / math.sqrt(examples)
    return _wider(values, max(mean - half, 0.0), mean + half)


def _wider(values: Sequence[float], low: float, high: float) -> tuple[float, float]:
    if len(values) == 1:
        return low, high
    lowest, highest = bootstrap(values)
    return min(low, lowest), max(high, highest)


def summary(experiment: Experiment, folder: Path, errors: dict[str, str]) -> ResultTable:
    """The settings, the results, and what is missing."""
    outcomes = [(cell, load(cell, folder)) for cell in experiment.cells(experiment.seeds)]
    rows = {label: _row(experiment, label, outcomes, errors) for label in experiment.rows}
    done = [outcome for _, outcome in outcomes if outcome is not None]
    return ResultTable(
        experiment=experiment.name,
        title=experiment.title,
        axis=experiment.axis,
        across=experiment.across,
        metric=experiment.metric,
        setting=experiment.setting,
        learning_rates=experiment.learning_rates,
        seeds=experiment.seeds,
        train=[Asked.of(problem) for problem in experiment.train],
        validate=[Asked.of(problem) for problem in experiment.validate],
        source=experiment.source,
        note=experiment.note,
        cells=len(done),
        core_seconds=sum(outcome.seconds for outcome in done),
        rows=[
            replace(row, against=_against(row, rows.get(experiment.against.get(label, "")), experiment.seeds))
            for label, row in rows.items()
        ],
    )


def _against(row: ResultRow, other: ResultRow | None, seeds: int) -> Against | None:
    """None before all seeds are done."""
    if other is None or not row.seeds == other.seeds == seeds:
        return None
    pairs = zip(row.points[-1].by_seed, other.points[-1].by_seed, strict=True)
    differences = [own - others for own, others in pairs]
    above = sum(difference > 0 for difference in differences)
    return Against(other.label, statistics.fmean(differences), min(differences), max(differences), above)


def _row(
    experiment: Experiment, label: str, outcomes: Sequence[tuple[Cell, Outcome | None]], errors: dict[str, str]
) -> ResultRow:
    own = [(cell, outcome) for cell, outcome in outcomes if cell.label == label]
    by_rate: dict[float, list[Outcome]] = {rate: [] for rate in experiment.learning_rates}
    for cell, outcome in own:
        if outcome is not None:
            by_rate[cell.learning_rate].append(outcome)
    tried = [_tried(experiment, rate, done) for rate, done in by_rate.items() if done]
    row = ResultRow(
        label=label,
        mixers=experiment.rows[label].mixers,
        options=experiment.rows[label].options,
        validation=tried,
        published=experiment.published.get(label, ""),
        errors=sorted({errors[cell.key] for cell, _ in own if cell.key in errors}),
        unfinished=sum(outcome is None for _, outcome in own),
        learning_rate=None,
        seeds=0,
        points=[],
        against=None,
        family=experiment.families.get(label, ""),
    )
    if not tried:
        return row
    sign = 1 if experiment.metric == "loss" else -1
    rate = min(tried, key=lambda one: (sign * one.value, one.learning_rate)).learning_rate
    done = by_rate[rate]
    return replace(
        row,
        learning_rate=rate,
        seeds=len(done),
        points=[
            _point(problem, experiment.metric, [outcome.scores[n] for outcome in done])
            for n, problem in enumerate(experiment.test)
        ],
        parameters=done[0].parameters,
        inner=own[0][0].setting.inner,
        steps=[outcome.steps for outcome in done],
        diverged=sum(outcome.diverged for outcome in done),
        seconds=statistics.fmean(outcome.seconds for outcome in done),
        curve=_curve(done),
    )


def _curve(done: Sequence[Outcome]) -> list[tuple[int, float]]:
    """At the steps that all seeds have."""
    losses = [dict(outcome.curve) for outcome in done]
    shared = sorted(set.intersection(*map(set, losses)))
    return [(step, statistics.fmean(own[step] for own in losses)) for step in shared]


def _tried(experiment: Experiment, rate: float, done: Sequence[Outcome]) -> Tried:
    if experiment.metric == "loss":
        return Tried(rate, loss=statistics.fmean(_known(outcome.validation_loss) for outcome in done))
    return Tried(rate, statistics.fmean(outcome.validation for outcome in done))


def _known(loss: float | None) -> float:
    if loss is None:
        raise ValueError("a cell has no loss: it was trained before losses were counted; give another --output")
    return loss


def _point(problem: Problem, metric: str, scores: Sequence[Score]) -> Point:
    values = [_known(getattr(score, metric)) for score in scores]
    examples = scores[0].examples
    if metric == "loss":
        low, high = loss_interval(values, [_known(score.loss_std) for score in scores], examples)
    else:
        low, high = interval(values, examples)
    buckets: dict[tuple[int, int], list[int]] = {}
    for score in scores:
        for start, stop, right, asked in score.by_distance:
            total = buckets.setdefault((start, stop), [0, 0])
            total[0] += right
            total[1] += asked
    return Point.of(
        problem,
        value=statistics.fmean(values),
        low=low,
        high=high,
        by_seed=values,
        accuracy=statistics.fmean(score.accuracy for score in scores),
        exact=statistics.fmean(score.exact for score in scores),
        loss=None if scores[0].loss is None else statistics.fmean(_known(score.loss) for score in scores),
        examples=examples,
        tokens=scores[0].length,
        state_bytes=scores[0].state_bytes,
        by_distance=[Bucket(*ends, right / asked, asked) for ends, (right, asked) in sorted(buckets.items())],
    )
