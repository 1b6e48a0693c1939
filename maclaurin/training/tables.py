"""A comparison on the screen: the runs while they run, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from maclaurin.common.sizes import size_text
from maclaurin.training.compare import Run
from maclaurin.training.recipe import Recipe
from maclaurin.training.statistics import Standing


class LiveTable:
    """One line per run: step, loss, validation loss. Where the output is no terminal, one line as each run ends."""

    def __init__(self, runs: Sequence[Run], steps: int) -> None:
        self.runs, self.steps = runs, steps
        self.figures: dict[tuple[str, int], dict[str, Any]] = {}
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, run: Run, figures: dict[str, Any]) -> None:
        self.figures.setdefault((run.name, run.seed), {}).update(figures)
        if self.live is not None:
            self.live.update(self._table())
        elif (result := run.result()) is not None:
            text = f"{run.name} (seed {run.seed}): validation loss {result['held_out_loss']:.4f}, {result['seconds']:.0f} s"
            self.console.print(text, highlight=False)

    def _table(self) -> Table:
        table = Table("mixer", "seed", "step", "loss", "validation loss")
        for run in self.runs:
            figures = self.figures.get((run.name, run.seed), {})
            step = "done" if run.result() is not None else f"{figures.get('step', 0)}/{self.steps}"
            cells = (f"{figures[key]:.4f}" if key in figures else "" for key in ("loss", "eval_loss"))
            table.add_row(run.name, str(run.seed), step if figures else "queued", *cells)
        return table


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
