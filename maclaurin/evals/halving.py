"""Successive halving: train all candidates briefly, the better part of them longer, and so on.

A rung is the same experiments with more steps and seeds. Candidates are ranked by the validation value of the first
experiment, the loss on text, at the best learning rate of each; those whose validation accuracy in the second, recall, is
below the rung's floor are out whatever their rank. A rung without a floor trains no recall. Learning rates are tuned with
one seed: a rung with several seeds has the rates that the rung before it chose. References go through all rungs and take
no place. Tests have no part in any choice. Every run is a cell on disk, and each choice follows from cells alone, so that
an interrupted search resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from maclaurin.common.arguments import at_least_one
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.results import ResultRow, ResultTable

GOES_ON, REFERENCE = "goes on", "reference"

Train = Callable[[list[Experiment]], tuple[list[ResultTable], dict[str, str]]]  # tables, and errors by cell


@dataclass(frozen=True)
class Rung:
    """times: its steps over those of the first rung; seeds: over those of the experiment. keep: the share of its candidates
    that goes on, at least one; without effect in the last rung. floor: the recall that a candidate must have, 0 for none.
    """

    times: int
    seeds: int
    keep: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        at_least_one("times", self.times)
        at_least_one("seeds", self.seeds)
        for name in ("keep", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


def halve(
    experiments: Sequence[Experiment], rungs: Sequence[Rung], references: Collection[str], train: Train
) -> tuple[list[ResultTable], dict[str, str]]:
    """The tables of all rungs with their verdicts, and the errors by the key of the cell."""
    tables: list[ResultTable] = []
    errors: dict[str, str] = {}
    alive = list(experiments[0].rows)
    chosen: dict[str, dict[str, float]] = {}  # by experiment and label
    for number, rung in enumerate(rungs, 1):
        asked = experiments if rung.floor else experiments[:1]
        tuned = chosen if rung.seeds > 1 else {}
        trained, failed = train([_longer(one, rung, number, alive, tuned.get(one.name, {})) for one in asked])
        errors |= failed
        chosen = {one.name: _rates(table) for one, table in zip(asked, trained, strict=True)}
        verdicts = judged(trained, rung, references, last=number == len(rungs))
        tables += [_with_verdicts(table, number, verdicts) for table in trained]
        alive = [label for label in alive if verdicts[label] in (GOES_ON, REFERENCE)]
        if GOES_ON not in verdicts.values():
            break
    return tables, errors


def judged(tables: Sequence[ResultTable], rung: Rung, references: Collection[str], *, last: bool) -> dict[str, str]:
    """By label: whether it goes on, and why not; after the last rung, its place."""
    loss = tables[0]
    recalls = {row.label: best(table, row) for table in tables[1:] for row in table.measured()}
    verdicts = {row.label: REFERENCE for row in loss.rows if row.label in references}
    ranked = []
    for row in loss.rows:
        if row.label in references:
            continue
        found = best(loss, row)
        recalled = recalls.get(row.label)
        if found is None or (recalled is None and rung.floor):
            verdicts[row.label] = "failed"
        elif recalled is not None and recalled < rung.floor:
            verdicts[row.label] = f"out: recall {recalled:.3f} is below {rung.floor:g}"
        else:
            ranked.append((found, row.label))
    ranked.sort()
    candidates = len(verdicts) - sum(verdict == REFERENCE for verdict in verdicts.values()) + len(ranked)
    kept = max(math.ceil(rung.keep * candidates), 1)
    for place, (_, label) in enumerate(ranked, 1):
        where = f"{place} of {len(ranked)}"
        verdicts[label] = where if last else GOES_ON if place <= kept else f"out: {where}"
    return verdicts


def best(table: ResultTable, row: ResultRow) -> float | None:
    """The validation value at the learning rate that was chosen; None before there is one."""
    return next((tried.value for tried in row.validation if tried.learning_rate == row.learning_rate), None)


def _rates(table: ResultTable) -> dict[str, float]:
    return {row.label: row.learning_rate for row in table.rows if row.learning_rate is not None}


def _longer(
    experiment: Experiment, rung: Rung, number: int, alive: Sequence[str], chosen: Mapping[str, float]
) -> Experiment:
    steps, seeds = rung.times * experiment.setting.steps, rung.seeds * experiment.seeds
    return replace(
        experiment,
        name=f"{experiment.name}-{number}",
        title=f"Rung {number}: {experiment.title}",
        rows={label: experiment.rows[label] for label in alive},
        setting=replace(experiment.setting, steps=steps),
        seeds=seeds,
        chosen=chosen,
    )


def _with_verdicts(table: ResultTable, number: int, verdicts: Mapping[str, str]) -> ResultTable:
    return replace(table, rung=number, rows=[replace(row, verdict=verdicts[row.label]) for row in table.rows])
