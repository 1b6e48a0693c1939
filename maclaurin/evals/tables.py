"""A suite on the screen: the cells while they run, and a table per experiment."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from maclaurin.common.progress import Every
from maclaurin.common.sizes import size_text
from maclaurin.evals.cells import Cell
from maclaurin.evals.results import Point, ResultRow, ResultTable
from maclaurin.evals.runner import Event

BEST = "◆"


class Watcher:
    """A bar for all cells and one per cell in training. Where the output is no terminal, a line as each cell ends, and every
    few seconds how far one of them is.
    """

    def __init__(self, total: int, done: int) -> None:
        self.console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.all = self.progress.add_task("cells", total=total, completed=done)
        self.bars: dict[str, TaskID] = {}
        self.total, self.done = total, done
        self.due = Every()

    def __enter__(self) -> Self:
        self.progress.start()
        if self.progress.disable:
            self.console.print(f"{self.total} cells to train, {self.done} of them done")
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        cell = event.cell
        if event.outcome is None and not event.error:
            bar = self.bars.get(cell.key)
            if bar is None:
                bar = self.bars[cell.key] = self.progress.add_task(cell.name, total=cell.setting.steps)
            text = f"{cell.name}, loss {event.loss:.3f}"
            self.progress.update(bar, completed=event.step, description=text)
            if self.progress.disable and self.due():
                self.console.print(f"{text}, step {event.step}/{cell.setting.steps}", markup=False, soft_wrap=True)
            return
        self.done += 1
        self.progress.update(self.all, completed=self.done)
        if (bar := self.bars.pop(cell.key, None)) is not None:
            self.progress.remove_task(bar)
        self.console.print(f"[{self.done}/{self.total}] {ending(cell, event)}", markup=False, soft_wrap=True)


def ending(cell: Cell, event: Event) -> str:
    if event.outcome is None:
        return f"{cell.name}: failed: {event.error}"
    outcome = event.outcome
    loss = "" if outcome.validation_loss is None else f", loss {outcome.validation_loss:.3f}"
    how = "diverged" if outcome.diverged else f"validation {outcome.validation:.3f}{loss}"
    return f"{cell.name}: {how} after {outcome.steps} steps, {outcome.seconds:.0f} core-seconds"


def column_title(table: ResultTable, value: Any) -> str:
    if value is None:
        return "test"
    return f"length {value}" if table.axis == "length" else f"{value} {table.axis}"


def result_table(table: ResultTable) -> Table:
    """Values above their 95 % intervals; with a second axis, the mean over it, without an interval."""
    setting = table.setting
    budget = f"; at most {setting.steps} steps of {setting.batch}; seeds: {table.seeds}" if setting else ""
    drawn = Table(title=f"{table.title}\n{table.metric_title}{budget}", caption="\n".join(footnotes(table)))
    drawn.add_column("mixer")
    drawn.add_column("learning rate (validation)")
    values = table.columns()
    for value in values:
        drawn.add_column(column_title(table, value), justify="right")
    compared = any(row.against for row in table.rows)
    if compared:
        drawn.add_column("seed by seed")
    for title in ("steps", "parameters", "state", time_title(table)):
        drawn.add_column(title, justify="right")
    if table.source:
        drawn.add_column("published elsewhere")
    for row in table.ordered():
        if row.points:
            cells = [accuracy_text(table.at(row, value)) for value in values]
            cells += ["\n".join(against_text(table, row))] * compared
            cells += [steps_text(row), f"{row.parameters:,}", state_text(table, row), f"{row.seconds:.0f}"]
        else:
            cells = [*("failed" if row.errors else "unfinished" for _ in values), *[""] * (4 + compared)]
        drawn.add_row(row.label, _rates(row), *cells, *([row.published] if table.source else []))
    return drawn


def _rates(row: ResultRow) -> str:
    """The learning rates tried, the chosen one marked."""
    marks = ("*" if tried.learning_rate == row.learning_rate else " " for tried in row.validation)
    rates = (f"{tried.learning_rate:g} ({tried.value:.3f})" for tried in row.validation)
    return "\n".join(map(str.__add__, marks, rates))


def footnotes(table: ResultTable) -> list[str]:
    """The notes below a table."""
    found = [table.note] if table.note else []
    if table.by_state:
        found.append(f"{BEST}: no other model has as good a value in as few bytes of state, in the last test")
    if table.source:
        found.append(f"published: {table.source}")
    if table.cells:
        found.append(f"cells: {table.cells}, in {table.core_seconds / 60:.1f} core-minutes")
    return found


def time_title(table: ResultTable) -> str:
    """Cells are timed in CPU time; a saved model, which may be on a GPU, in wall time."""
    return "core-s per run" if table.setting else "s per run"


def steps_text(row: ResultRow) -> str:
    """Steps with the chosen learning rate, per seed if they differ; a saved model has none."""
    taken = row.steps
    return ", ".join(map(str, taken if len(set(taken)) > 1 else taken[:1]))


def state_text(table: ResultTable, row: ResultRow) -> str:
    """Of the last test, the longest; marked where no other model is as good in as few bytes."""
    state = row.points[-1].state_bytes
    mark = f" {BEST}" if table.by_state and row.label in table.frontier() else ""
    return "" if state is None else size_text(state) + mark


def accuracy_text(points: Sequence[Point]) -> str:
    mean = statistics.fmean(point.value for point in points)
    if len(points) > 1:
        return f"{mean:.3f}"
    return f"{mean:.3f}\n{points[0].low:.3f}–{points[0].high:.3f}"


def against_text(table: ResultTable, row: ResultRow) -> tuple[str, str]:
    """The comparison with another model seed by seed: mean, lowest and highest difference; empty if there is none."""
    against = row.against
    if against is None:
        return "", ""
    above = f"above in {against.seeds_above} of {row.seeds}"
    below = f"below in {row.seeds - against.seeds_above} of {row.seeds}"
    return (
        f"{against.difference:+.3f} to {against.row}",
        f"{against.lowest:+.3f} … {against.highest:+.3f}, {below if table.lower_is_better else above}",
    )


def distance_table(table: ResultTable) -> Table | None:
    """Recall on the last test by how many tokens ago the key occurred; None if no answer has a distance."""
    rows = [row for row in table.measured() if row.points[-1].by_distance]
    if not rows:
        return None
    last = rows[0].points[-1]
    drawn = Table(title=f"Recall by tokens since the key occurred, {last.tokens} tokens")
    drawn.add_column("mixer")
    for bucket in last.by_distance:
        drawn.add_column(f"{bucket.start}–{bucket.stop - 1}", justify="right")
    for row in rows:
        drawn.add_row(row.label, *(f"{bucket.accuracy:.3f}" for bucket in row.points[-1].by_distance))
    drawn.add_section()
    drawn.add_row("answers per mixer", *(f"{bucket.answers:,}" for bucket in last.by_distance))
    return drawn
