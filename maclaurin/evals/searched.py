"""All runs of a search as one table, on the screen and on its page: a line per candidate and rung, the last rung first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from maclaurin.common.sizes import size_text
from maclaurin.evals.halving import best
from maclaurin.evals.results import ResultRow, ResultTable

TITLES = (
    *("candidate", "rung", "steps", "seeds", "verdict", "loss: validation", "test", "recall: validation", "test"),
    *("rates", "parameters", "state", "core-s"),
)
LEFT = ("candidate", "verdict", "rates")


def lines(tables: Sequence[ResultTable]) -> list[list[str]]:
    """In the order of `TITLES`. In a rung the best loss comes first, what failed last."""
    found = []
    for number in sorted({table.rung or 0 for table in tables}, reverse=True):
        text, *recalls = (table for table in tables if table.rung == number)
        recalled = {row.label: (table, row) for table in recalls for row in table.rows}
        ranked = sorted(text.rows, key=lambda row: (best(text, row) is None, best(text, row) or 0.0))
        found += [_line((text, row), recalled.get(row.label)) for row in ranked]
    return found


def _line(losses: tuple[ResultTable, ResultRow], recalls: tuple[ResultTable, ResultRow] | None) -> list[str]:
    """recalls: None in a rung that trains none."""
    text, row = losses
    both = [losses, *([recalls] if recalls else [])]
    steps = ", ".join(str(table.setting.steps) for table, _ in both if table.setting)
    errors = [error for _, own in both for error in own.errors]
    diverged = sum(own.diverged for _, own in both)
    verdict = row.verdict + f"; diverged: {diverged}" * bool(diverged) + "".join(f": {error}" for error in errors[:1])
    point = row.points[-1] if row.points else None
    rates = [f"{own.learning_rate:g}" if own.learning_rate else "–" for _, own in both]
    return [
        row.label,
        str(text.rung),
        steps,
        str(text.seeds),
        verdict,
        *_values(*losses),
        *(_values(*recalls) if recalls else ("–", "–")),
        ", ".join(rates),
        f"{row.parameters:,}" if row.parameters else "–",
        size_text(point.state_bytes) if point and point.state_bytes is not None else "–",
        f"{sum(own.seconds or 0 for _, own in both):.0f}",
    ]


def _values(table: ResultTable, row: ResultRow) -> tuple[str, str]:
    value = best(table, row)
    return ("–", "–") if value is None or not row.points else (f"{value:.3f}", f"{row.points[-1].value:.3f}")


def search_table(tables: Sequence[ResultTable]) -> Table:
    drawn = Table(title="All candidates: steps, rates and core-seconds per run of text and recall", caption=cost(tables))
    for title in TITLES:
        drawn.add_column(title, justify="left" if title in LEFT else "right")
    for line in lines(tables):
        drawn.add_row(*line)
    return drawn


def cost(tables: Sequence[ResultTable]) -> str:
    cells, minutes = sum(table.cells for table in tables), sum(table.core_seconds for table in tables) / 60
    return f"cells: {cells}, in {minutes:.1f} core-minutes; recall is that of the last test"
