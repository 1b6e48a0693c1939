"""From outcomes to a table: the best learning rate of each row, and how sure its accuracies are.

The learning rate of a row is the one with the best mean validation accuracy over seeds, the smaller one of two equals; tests
have no part in it. With one seed an interval is Wilson's over the examples of the test: an accuracy of several answers an
example varies no more than one of one answer, so it is on the safe side. With several seeds it is the wider one of that over
the examples of all seeds and the bootstrap of the mean over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maclaurin.common.intervals import wilson
from maclaurin.evals.cells import Cell
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.runner import load

RESAMPLES = 10_000


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by drawing the values again; the same draws every time."""
    draws = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(draws.mean(1), (0.025, 0.975))
    return float(low), float(high)


def interval(values: Sequence[float], examples: int) -> tuple[float, float]:
    """Of the mean of one value a seed, each of `examples` examples."""
    low, high = wilson(statistics.fmean(values), examples * len(values))
    if len(values) == 1:
        return low, high
    lowest, highest = bootstrap(values)
    return min(low, lowest), max(high, highest)


def summary(experiment: Experiment, folder: Path, errors: dict[str, str]) -> dict[str, Any]:
    """A table as plain data: all that was asked for, what came out, and what is missing."""
    cells = experiment.cells(experiment.seeds)
    rows = {label: _row(experiment, label, cells, folder, errors) for label in experiment.rows}
    done = [outcome for cell in cells if (outcome := load(cell, folder)) is not None]
    for label, row in rows.items():
        row["against"] = _against(row, rows.get(experiment.against.get(label, "")), experiment.seeds)
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "axis": experiment.axis,
        "across": experiment.across,
        "metric": experiment.metric,
        "setting": vars(experiment.setting),
        "learning_rates": list(experiment.learning_rates),
        "seeds": experiment.seeds,
        **{
            part: [{"task": problem.name, **problem.options} for problem in problems]
            for part, problems in (("train", experiment.train), ("validate", experiment.validate))
        },
        "source": experiment.source,
        "note": experiment.note,
        "cells": len(done),
        "core_seconds": sum(outcome.seconds for outcome in done),  # of the whole grid, not of the chosen rates alone
        "rows": list(rows.values()),
    }


def _against(row: dict[str, Any], other: dict[str, Any] | None, seeds: int) -> dict[str, Any] | None:
    """How much better it is on the last test than another row with the same seed; None before all seeds are done."""
    if other is None or not row["seeds"] == other["seeds"] == seeds:
        return None
    pairs = zip(row["points"][-1]["by_seed"], other["points"][-1]["by_seed"], strict=True)
    differences = [own - others for own, others in pairs]
    return {
        "row": other["label"],
        "difference": statistics.fmean(differences),
        "lowest": min(differences),
        "highest": max(differences),
        "seeds_above": sum(difference > 0 for difference in differences),
    }


def _row(experiment: Experiment, label: str, cells: Sequence[Cell], folder: Path, errors: dict[str, str]) -> dict[str, Any]:
    own = [cell for cell in cells if cell.label == label]
    by_rate: dict[float, list[Outcome]] = {rate: [] for rate in experiment.learning_rates}
    for cell in own:
        if (outcome := load(cell, folder)) is not None:
            by_rate[cell.learning_rate].append(outcome)
    validation = {rate: statistics.fmean(outcome.validation for outcome in done) for rate, done in by_rate.items() if done}
    row: dict[str, Any] = {
        "label": label,
        "mixers": list(experiment.rows[label].mixers),
        "options": {name: dict(options) for name, options in experiment.rows[label].options.items()},
        "validation": [{"learning_rate": rate, "accuracy": score} for rate, score in validation.items()],
        "published": experiment.published.get(label, ""),
        "errors": sorted({errors[cell.key] for cell in own if cell.key in errors}),
        "unfinished": sum(load(cell, folder) is None for cell in own),
    }
    if not validation:
        return row | {"learning_rate": None, "seeds": 0, "points": []}
    rate = min(validation, key=lambda rate: (-validation[rate], rate))
    done = by_rate[rate]
    return row | {
        "learning_rate": rate,
        "seeds": len(done),
        "points": [
            {"task": problem.name, **problem.options, **_point(experiment.metric, [outcome.scores[n] for outcome in done])}
            for n, problem in enumerate(experiment.test)
        ],
        "parameters": done[0].parameters,
        "inner": own[0].setting.inner,
        "steps": [outcome.steps for outcome in done],
        "diverged": sum(outcome.diverged for outcome in done),
        "seconds": statistics.fmean(outcome.seconds for outcome in done),
    }


def _point(metric: str, scores: Sequence[Score]) -> dict[str, Any]:
    values = [getattr(score, metric) for score in scores]
    low, high = interval(values, scores[0].examples)
    buckets: dict[tuple[int, int], list[int]] = {}
    for score in scores:
        for start, stop, right, asked in score.by_distance:
            total = buckets.setdefault((start, stop), [0, 0])
            total[0] += right
            total[1] += asked
    return {
        "value": statistics.fmean(values),
        "low": low,
        "high": high,
        "by_seed": values,
        "accuracy": statistics.fmean(score.accuracy for score in scores),
        "exact": statistics.fmean(score.exact for score in scores),
        "examples": scores[0].examples,
        "tokens": scores[0].length,
        "state_bytes": scores[0].state_bytes,
        "by_distance": [
            {"from": start, "to": stop, "accuracy": right / asked, "answers": asked}
            for (start, stop), (right, asked) in sorted(buckets.items())
        ],
    }
