"""What a table will take: from the cells that are done, or else from a few steps of each of its rows."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from maclaurin.common.progress import time_text
from maclaurin.evals.cells import Cell
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import train
from maclaurin.evals.models import build
from maclaurin.evals.runner import load

STEPS = 3  # that are timed


@dataclass(frozen=True)
class Cost:
    """cells: all of them, and how many are done. core_seconds: for the rest. by: what the estimate is from."""

    cells: int
    done: int
    core_seconds: float
    by: str

    def text(self, jobs: int) -> str:
        left = self.cells - self.done
        if not left:
            return f"all {self.cells} cells are done"
        wait = self.core_seconds / max(min(jobs, left), 1)
        return f"{left} of {self.cells} cells to train, about {time_text(wait)} with {jobs} processes ({self.by})"


def estimate(experiment: Experiment, folder: Path) -> Cost:
    cells = {cell.key: cell for cell in experiment.cells(experiment.seeds)}
    known = [outcome.seconds for cell in cells.values() if (outcome := load(cell, folder)) is not None]
    left = len(cells) - len(known)
    if known or not cells:
        each = statistics.fmean(known) if known else 0.0
        return Cost(len(cells), len(known), left * each, f"by the {len(known)} that are done")
    of_rows = {repr((cell.row, cell.setting)): cell for cell in cells.values()}
    each = statistics.fmean(map(measured, of_rows.values()))
    return Cost(len(cells), 0, left * each, f"by {STEPS} steps of each row")


def measured(cell: Cell) -> float:
    """The CPU seconds that the training of a cell would take, by those of a few of its steps."""
    tasks = [problem.task() for problem in cell.train]
    torch.manual_seed(cell.seed)
    model = build(cell.row, cell.setting, tasks[0])
    few = replace(cell, setting=replace(cell.setting, steps=STEPS, stop_at=None), validate=())
    train(model, few, tasks)  # the first steps allocate, and read the data
    started = time.process_time()
    train(model, few, tasks)
    return (time.process_time() - started) / STEPS * cell.setting.steps
