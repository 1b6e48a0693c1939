"""Recall of the contenders of a comparison: small models of each, trained by the runner of the suites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from maclaurin.common.arguments import at_least_one
from maclaurin.common.shards import WHOLE
from maclaurin.evals.cells import Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.planning import check
from maclaurin.evals.results import ResultRow, ResultTable
from maclaurin.evals.runner import Watch, run
from maclaurin.evals.suites.frontier import few_to_many
from maclaurin.evals.summary import summary
from maclaurin.training.contenders import Contender
from maclaurin.training.statistics import Recall

FOLDER = "recall"  # in that of the comparison
NOTE = (
    "About 1 / pairs is the accuracy of knowing which values occurred but not their keys: a mixer there has not learned the "
    "task in these steps, which says nothing about the capacity of its state."
)


@dataclass(frozen=True)
class Task:
    """pairs: tested on; trained on 2, 4, 8, … up to the most of them: few are learned sooner, and help to learn more."""

    pairs: tuple[int, ...]
    vocab_size: int
    setting: Setting
    learning_rates: tuple[float, ...]
    seeds: int = 1


TASKS = {
    "minutes": Task((4, 8, 16), 40, Setting(heads=8, steps=600, batch=64, stop_at=0.99, examples=300), (3e-3, 1e-2)),
    "hour": Task((4, 16, 64), 144, Setting(heads=4, steps=1000, batch=64, stop_at=0.99, examples=500), (3e-3, 1e-2)),
    "night": Task((4, 16, 64), 512, Setting(heads=4, steps=4000, batch=64, stop_at=0.995), (1e-3, 3e-3, 1e-2), seeds=3),
}


def experiment(contenders: Mapping[str, Contender], budget: str, steps: int | None = None) -> Experiment:
    """Trained on all numbers of pairs at once, and tested on each that the budget names. steps: at most, if not its own."""
    task = TASKS[budget]
    setting, trained_on = task.setting, few_to_many(task.pairs[-1], task.vocab_size)
    if steps is not None:
        at_least_one("recall_steps", steps)
        setting = replace(setting, steps=steps)
    found = Experiment(
        "mqar",
        f"Recall of key-value pairs (MQAR), {setting.layers} layers of width {setting.width}, {setting.heads} heads: "
        "accuracy by number of pairs",
        {name: Row(own.mixers, own.options) for name, own in contenders.items()},
        setting,
        train=trained_on,
        test=tuple(problem for problem in trained_on if problem.options["pairs"] in task.pairs),
        learning_rates=task.learning_rates,
        seeds=task.seeds,
        axis="pairs",
        note=NOTE,
    )
    check(found)
    return found


def trained(
    asked: Experiment, folder: Path, *, jobs: int, watch: Watch, shard: str = WHOLE
) -> tuple[ResultTable, dict[str, str]]:
    """The table, and the errors by the key of the cell."""
    errors = run(asked.cells(asked.seeds), folder, jobs=jobs, watch=watch, shard=shard)
    return summary(asked, folder, errors), errors


def figures(table: ResultTable) -> dict[str, Recall]:
    """By contender; those that failed have none."""
    return {row.label: _figures(table, row) for row in table.measured()}


def _figures(table: ResultTable, row: ResultRow) -> Recall:
    pairs = [int(value) for value in table.columns()]
    return Recall(
        pairs=tuple(pairs),
        accuracy=tuple(point.value for point in row.points),
        low=tuple(point.low for point in row.points),
        high=tuple(point.high for point in row.points),
        chance=tuple(1 / count for count in pairs),
        state_bytes=row.points[-1].state_bytes or 0,
        learning_rate=row.learning_rate or 0.0,
    )
