"""A comparison on the screen: the runs while they run, and the table of results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from maclaurin.common.progress import Every, time_text
from maclaurin.common.sizes import size_text
from maclaurin.training.checkpoints import checkpoints
from maclaurin.training.compare import Run, last_line
from maclaurin.training.execution import Watch
from maclaurin.training.recipe import Recipe
from maclaurin.training.statistics import Standing


class LiveTable(Watch):
    """One row per run: step, loss, validation loss. Where the output is no terminal, a line as each run starts and ends, and
    every few seconds how far it is. total: of the runs, some of which may not be known yet.
    """

    def __init__(self, runs: Sequence[Run], steps: int, total: int | None = None) -> None:
        self.runs, self.steps = list(runs), steps
        self.total = len(self.runs) if total is None else total
        self.figures: dict[str, dict[str, Any]] = {}  # by the folder of the run
        self.pace: dict[str, Pace] = {}
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        self.due = Every()

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def start(self, run: Run) -> None:
        if run not in self.runs:
            self.runs.append(run)
        self.figures[run.recipe.output] = {}
        self._show(run, "resumed" if checkpoints(Path(run.recipe.output)) else "started")
        self.due = Every()

    def update(self, run: Run, figures: dict[str, Any]) -> None:
        """While it runs, with its latest figures; there are none before its first steps."""
        self.figures[run.recipe.output] = figures
        if "step" in figures:
            self.pace.setdefault(run.recipe.output, Pace(figures["step"], time.monotonic()))
        if self.live is not None or self.due():
            self._show(run, self._progress(run) if "step" in figures else last_line(run) or "loading")

    def end(self, run: Run) -> None:
        result = run.result()
        assert result is not None
        said = "diverged" if "diverged" in result else f"validation loss {result['held_out_loss']:.4f}"
        self._show(run, f"{said}, {result['seconds']:.0f} s")

    def _show(self, run: Run, text: str) -> None:
        if self.live is not None:
            self.live.update(self._table())
        else:
            place = f"[{self.runs.index(run) + 1}/{max(self.total, len(self.runs))}]"
            self.console.print(f"{place} {run.name} ({_which(run)}): {text}", markup=False, soft_wrap=True)

    def _progress(self, run: Run) -> str:
        figures, pace = self.figures[run.recipe.output], self.pace[run.recipe.output]
        parts = [f"step {figures['step']}/{self.steps}"]
        if "loss" in figures:
            parts.append(f"loss {figures['loss']:.4f}")
        if rate := pace.steps_per_second(figures["step"]):
            parts.append(f"{rate * run.recipe.tokens_per_step:,.0f} tokens/s")
            parts.append(f"{time_text((self.steps - figures['step']) / rate)} left")
        return ", ".join(parts)

    def _table(self) -> Table:
        table = Table("mixer", "run", "step", "loss", "validation loss")
        for run in self.runs:
            table.add_row(run.name, _which(run), *self._cells(run))
        return table

    def _cells(self, run: Run) -> tuple[str, str, str]:
        figures = self.figures.get(run.recipe.output)
        if (result := run.result()) is not None:
            if "diverged" in result:
                return "diverged", "", ""
            return "done", _number(figures, "loss"), f"{result['held_out_loss']:.4f}"
        if figures is None:
            return "queued", "", ""
        return f"{figures.get('step', 0)}/{self.steps}", _number(figures, "loss"), _number(figures, "eval_loss")


@dataclass(frozen=True)
class Pace:
    """When a run was first seen at which step."""

    step: int
    at: float

    def steps_per_second(self, step: int) -> float:
        """0 while that is not known yet."""
        return (step - self.step) / max(time.monotonic() - self.at, 1e-9)


def _which(run: Run) -> str:
    return f"rate {run.recipe.learning_rate:g}, seed {run.seed}" if run.may_diverge else f"seed {run.seed}"


def _number(figures: dict[str, Any] | None, name: str) -> str:
    return f"{figures[name]:.4f}" if figures and name in figures else ""


def result_table(rows: Sequence[Standing], recipe: Recipe) -> Table:
    """Columns that no row has a figure for are left out."""
    tokens = recipe.steps * recipe.tokens_per_step
    part = "test" if recipe.test_rows else "validation"
    table = Table(title=f"{recipe.corpus}, {recipe.steps} steps, {tokens:,} tokens: {part} loss, nats per token")
    done = [row for row in rows if row.loss is not None]
    pairs = next((row.recall.pairs for row in done if row.recall), ())
    columns: dict[str, Callable[[Standing], str]] = {
        "loss": lambda row: f"{row.loss:.4f}",
        "± (seeds)": lambda row: f"{'' if row.spread is None else f'{row.spread:.4f}'} ({row.seeds})",
        "behind the first (95 %)": behind_text,
        "rate": lambda row: f"{row.learning_rate:g}" if row.tried else "",
        **{f"{count} pairs": partial(accuracy_text, place) for place, count in enumerate(pairs)},
        "parameters": lambda row: f"{row.parameters:,}",
        "tokens/s": lambda row: "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        "peak memory": lambda row: "" if row.peak_bytes is None else size_text(row.peak_bytes),
        "state at 8k": lambda row: size_text(row.state_bytes_at_8k),
        "ms at 16k": lambda row: "" if row.decode_ms is None else f"{row.decode_ms:.2f}",
        "published (arXiv 2602.17363, its setting)": lambda row: row.published,
    }
    shown = {title: [cell(row) for row in done] for title, cell in columns.items()}
    table.add_column("rank and mixer")
    few = {"published": 2}  # one published loss has nothing to be compared with
    kept = [title for title, cells in shown.items() if sum(map(bool, cells)) >= few.get(title.split()[0], 1)]
    for title in kept:
        table.add_column(title, justify="left" if title.startswith("published") else "right")
    for place, row in enumerate(done):
        table.add_row(f"{row.rank}. {row.name}", *(shown[title][place] for title in kept))
    return table


def behind_text(row: Standing) -> str:
    """How far it is behind the first row, and "level" where that may be chance."""
    if row.behind is None:
        return ""
    if row.behind.level is None:
        return f"{row.behind.nats:+.4f}"
    ends = f"{row.behind.nats:+.4f} ({row.behind.low:+.4f} to {row.behind.high:+.4f})"
    return f"{ends} level" if row.behind.level else ends


def accuracy_text(place: int, row: Standing) -> str:
    """An accuracy that guessing would have too is marked."""
    if row.recall is None or place >= len(row.recall.accuracy):
        return ""
    guess = "*" if row.recall.low[place] <= row.recall.chance[place] else ""
    return f"{row.recall.accuracy[place]:.3f}{guess}"
