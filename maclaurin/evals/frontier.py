"""Figures of a table that is about bytes of state: one per test, with a line per family."""

from __future__ import annotations

from maclaurin.evals.results import ResultRow, ResultTable
from maclaurin.evals.tables import column_title
from maclaurin.page import figures
from maclaurin.page.figures import Line, Style
from maclaurin.page.frontier import Family, frontier
from maclaurin.page.html import Chart


def frontiers(key: str, table: ResultTable) -> list[Chart]:
    """`key` names them in the page and as files."""
    families: dict[str, list[ResultRow]] = {}
    for row in table.measured():
        if row.points[-1].state_bytes is not None:
            families.setdefault(row.family or row.label, []).append(row)
    style = figures.styles([(name, name) for name in families])
    charts = []
    for place, point in enumerate(next(iter(families.values()))[0].points if families else ()):
        measured = {name: [row for row in rows if len(row.points) > place] for name, rows in families.items()}
        lines = [_family(name, style[name], rows, place) for name, rows in measured.items()]
        value = point.options.get(table.axis)
        where = "" if value is None else f" at {column_title(table, value)}"
        figure = frontier(lines, table.metric_title, lower=table.lower_is_better)
        better = "less" if table.lower_is_better else "more"
        caption = (
            f"{table.metric_title.capitalize()}{where}, {better} is better, against the state of one sequence of "
            f"{point.tokens} tokens. Wide grey line: the frontier, {', '.join(table.frontier(place))}."
        )
        charts.append(Chart(f"{key}-state-{place}", figure, caption))
    return charts


def _family(name: str, style: Style, rows: list[ResultRow], place: int) -> Family:
    by_state = sorted(rows, key=lambda row: row.points[place].state_bytes or 0)
    points = [row.points[place] for row in by_state]
    line = Line(
        name,
        style,
        [float(point.state_bytes or 0) for point in points],
        [point.value for point in points],
        [point.low for point in points],
        [point.high for point in points],
    )
    return Family(line, [row.label.removeprefix(name).lstrip("-") or name for row in by_state])
