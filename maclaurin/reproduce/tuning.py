"""Learning rates, tuned per row with the first seed: every rate with that seed, and the best of them with the others.

Rates are chosen by validation; tests have no part in it. Each choice follows from cells on disk, so that a run that was
killed chooses the same rates again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from maclaurin.evals.cells import Cell
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.results import ResultTable
from maclaurin.evals.runner import load
from maclaurin.evals.summary import summary


def tuning_cells(experiment: Experiment) -> list[Cell]:
    """The first seed of every row, with every learning rate; rows with the same settings once."""
    return _unique(experiment.cells(1))


def tuned(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the best learning rate of every row whose first seed is done."""
    unfinished = {cell.label for cell in experiment.cells(1) if load(cell, folder) is None}
    rows = summary(replace(experiment, seeds=1), folder, {}).rows
    chosen = {row.label: row.learning_rate for row in rows if row.learning_rate is not None}
    return replace(experiment, chosen={label: rate for label, rate in chosen.items() if label not in unfinished})


def cells_of_tuned(experiment: Experiment) -> list[Cell]:
    """All seeds of the rows whose learning rate is chosen."""
    return _unique(cell for cell in experiment.cells(experiment.seeds) if cell.label in experiment.chosen)


def _unique(cells: Iterable[Cell]) -> list[Cell]:
    return list({cell.key: cell for cell in cells}.values())


def result(experiment: Experiment, folder: Path, errors: Mapping[str, str]) -> ResultTable:
    """The table of all seeds, with what every learning rate came to with the first one."""
    chosen = tuned(experiment, folder)
    table = summary(chosen, folder, dict(errors))
    tried = {row.label: row.validation for row in summary(replace(experiment, seeds=1), folder, {}).rows}
    cells = _unique([*tuning_cells(experiment), *cells_of_tuned(chosen)])
    outcomes = [outcome for cell in cells if (outcome := load(cell, folder)) is not None]
    return replace(
        table,
        rows=[replace(row, validation=tried[row.label]) for row in table.rows],
        cells=len(outcomes),
        core_seconds=sum(outcome.seconds for outcome in outcomes),
    )
