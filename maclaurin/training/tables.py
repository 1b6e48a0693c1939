"""A comparison on the screen: the runs while they run, and the table of results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from maclaurin.common.progress import Every, time_text
from maclaurin.common.sizes import size_text
from maclaurin.training.checkpoints import checkpoints
from maclaurin.training.compare import Run, last_line
from maclaurin.training.recipe import Recipe
from maclaurin.training.statistics import Standing


class LiveTable:
    """One row per run: step, loss, validation loss. Where the output is no terminal, a line as each run starts and ends, and
    every few seconds how far it is.
    """

    def __init__(self, runs: Sequence[Run], steps: int) -> None:
        self.runs, self.steps = runs, steps
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
        self._show(run, f"validation loss {result['held_out_loss']:.4f}, {result['seconds']:.0f} s")

    def _show(self, run: Run, text: str) -> None:
        if self.live is not None:
            self.live.update(self._table())
        else:
            place = f"[{self.runs.index(run) + 1}/{len(self.runs)}]"
            self.console.print(f"{place} {run.name} (seed {run.seed}): {text}", markup=False, soft_wrap=True)

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
        table = Table("mixer", "seed", "step", "loss", "validation loss")
        for run in self.runs:
            table.add_row(run.name, str(run.seed), *self._cells(run))
        return table

    def _cells(self, run: Run) -> tuple[str, str, str]:
        figures = self.figures.get(run.recipe.output)
        if (result := run.result()) is not None:
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


def _number(figures: dict[str, Any] | None, name: str) -> str:
    return f"{figures[name]:.4f}" if figures and name in figures else ""


def result_table(rows: Sequence[Standing], recipe: Recipe) -> Table:
    tokens = recipe.steps * recipe.tokens_per_step
    table = Table(
        title=f"{recipe.size}, {recipe.corpus}, {recipe.steps} steps, {tokens:,} tokens: validation loss, nats per token"
    )
    table.add_column("rank and mixer")
    for column in ("loss", "± (seeds)", "parameters", "tokens/s", "peak memory", "state at 8k"):
        table.add_column(column, justify="right")
    table.add_column("published (arXiv 2602.17363, its setting)")
    for row in rows:
        if row.loss is None:
            continue
        spread = "" if row.spread is None else f"{row.spread:.4f}"
        table.add_row(
            f"{row.rank}. {row.name}",
            f"{row.loss:.4f}",
            f"{spread} ({row.seeds})",
            f"{row.parameters:,}",
            "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
            "" if row.peak_bytes is None else size_text(row.peak_bytes),
            size_text(row.state_bytes_at_8k),
            row.published,
        )
    return table
