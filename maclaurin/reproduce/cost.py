"""What a table will take: by the cells of each row that are done, or else by a few steps of the row."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from maclaurin.common.progress import time_text
from maclaurin.data.tasks import StoredTask
from maclaurin.evals.cells import Cell, Problem
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import VALIDATION_EXAMPLES, train
from maclaurin.evals.models import SmallModel, build
from maclaurin.evals.runner import load
from maclaurin.reproduce.tuning import cells_of_tuned, tuned, tuning_cells

STEPS = 3  # that are timed
EXAMPLES = 4  # of each test


@dataclass(frozen=True)
class Cost:
    """cells: all of them, and how many are done. core_seconds: for the rest."""

    cells: int
    done: int
    core_seconds: float

    def text(self, jobs: int) -> str:
        left = self.cells - self.done
        if not left:
            return f"all {self.cells} cells are done"
        wait = self.core_seconds / max(min(jobs, left), 1)
        what = f"{left} of {self.cells} cells to train, about {self.core_seconds / 60:.1f} core-minutes"
        return f"{what}: {time_text(wait)} with {jobs} processes"


def estimate(experiment: Experiment, folder: Path) -> Cost:
    """Cells that another table has trained are done; rows with equal settings are trained once."""
    chosen = tuned(experiment, folder)
    cells = {cell.key: cell for cell in (*tuning_cells(experiment), *cells_of_tuned(chosen))}
    done = {key: outcome.seconds for key, cell in cells.items() if (outcome := load(cell, folder)) is not None}
    kinds: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells.values():
        kinds[repr((cell.row, cell.setting))].append(cell)
    total, seconds = 0, 0.0
    for own in kinds.values():
        # before the rate is chosen, the other seeds have no cells yet
        later = 0 if any(cell.label in chosen.chosen for cell in own) else experiment.seeds - 1
        total += len(own) + later
        known = [done[cell.key] for cell in own if cell.key in done]
        if left := len(own) + later - len(known):
            seconds += left * (statistics.fmean(known) if known else measured(own[0]))
    return Cost(total, len(done), seconds)


def measured(cell: Cell) -> float:
    """The CPU seconds that a cell would take, by those of a few of its steps and examples."""
    tasks = [problem.task() for problem in cell.train]
    torch.manual_seed(cell.seed)
    model = build(cell.row, cell.setting, tasks[0])
    few = replace(cell, setting=replace(cell.setting, steps=STEPS, stop_at=None), validate=())
    train(model, few, tasks)  # the first steps allocate, and read the data
    started = time.process_time()
    train(model, few, tasks)
    steps = (time.process_time() - started) / STEPS * cell.setting.steps
    judged = [(problem, VALIDATION_EXAMPLES) for problem in cell.validate or cell.train]
    tested = [(problem, cell.setting.examples) for problem in cell.test]
    return steps + sum(_scoring(model, *asked) for asked in (*judged, *tested))


@torch.no_grad()
def _scoring(model: SmallModel, problem: Problem, examples: int) -> float:
    task = problem.task()
    count = len(task) if isinstance(task, StoredTask) else examples
    drawn = task.sample(EXAMPLES, 0)
    started = time.process_time()
    model(drawn)
    return (time.process_time() - started) / EXAMPLES * count
