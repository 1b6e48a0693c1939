"""A suite as a page: values against pairs, lengths (the trained ones shaded) or bytes of state, heat maps, and the table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from maclaurin.evals import searched
from maclaurin.evals.frontier import frontiers
from maclaurin.evals.results import ResultRow, ResultTable, SuiteResult
from maclaurin.evals.tables import against_text, column_title, footnotes, state_text, steps_text, time_title
from maclaurin.machine.inventory import devices, versions
from maclaurin.page import figures
from maclaurin.page.figures import Line, Style
from maclaurin.page.html import Cell, Chart, Code, Column, DataTable, Page, Section

AXES = {"pairs": "pairs to remember", "length": "length", "longest": "letters"}

LEAD = (
    "Every cell trains a model of its own at an equal budget. The learning rate of a mixer is the best of the grid by "
    "validation; tests have no part in it."
)
LEAD_OF_A_MODEL = (
    "A trained model continues every prompt greedily, with its own tokenizer. Intervals are 95 %: Wilson's over prompts."
)


def page(results: SuiteResult) -> Page:
    tables = results.tables
    made = {"command": results.command, **versions(), **devices()}
    sections = [*searches(tables), *(section(table, table.experiment) for table in tables)]
    sections.append(
        Section(
            "How it was made",
            "The same command continues after an interruption, and gives the same numbers again on the same machine.",
            [Code("Command and versions", "\n".join(f"{name}: {value}" for name, value in made.items() if value))]
            + [settings(table) for table in tables],
        )
    )
    return Page(f"Maclaurin: {results.suite}", headline(tables[0]), [lead(tables)], sections)


def searches(tables: Sequence[ResultTable], key: str = "search") -> list[Section]:
    """All rungs of a search as one table; of another suite nothing."""
    if not any(table.rung for table in tables):
        return []
    columns = [Column(title, numeric=title not in searched.LEFT) for title in searched.TITLES]
    rows = [[_number(text) for text in line] for line in searched.lines(tables)]
    return [Section("All candidates", "", [DataTable(f"table-{key}", columns, rows, searched.cost(tables))])]


def _number(text: str) -> Cell:
    number = text.replace(",", "")
    return Cell(text, float(number)) if number.replace(".", "", 1).isdigit() else Cell(text)


def lead(tables: Sequence[ResultTable]) -> str:
    """How the figures were made, and what their intervals are over."""
    if not any(table.setting for table in tables):
        return LEAD_OF_A_MODEL
    seeds = {row.seeds for table in tables for row in table.measured()}
    over = "Wilson's over examples"
    if any(table.lower_is_better for table in tables):
        over += " (of a loss the normal one, over pieces of a text that all models share)"
    if seeds <= {1}:
        return f"{LEAD} Each has one seed: intervals are 95 %, {over}, and do not say what another seed would change."
    one = f"with one seed {over}, with several " if 1 in seeds else ""
    return f"{LEAD} Intervals are 95 %: {one}the wider of {over if not one else 'that'} and the bootstrap over seeds."


def headline(table: ResultTable) -> str:
    rows = table.measured()
    if not rows:
        return "No cell has finished yet"
    value = table.columns()[-1]
    means = {row.label: statistics.fmean(point.value for point in table.at(row, value)) for row in rows}
    where = "" if value is None else f" at {column_title(table, value)}"
    lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    worst, best = (highest, lowest) if table.lower_is_better else (lowest, highest)
    guessing = [row.label for row in rows if table.at_chance(row, value)]
    if len(guessing) == len(rows):
        which = f"{best} is" if len(rows) == 1 else f"none of {len(rows)} is"
        ends = f"{means[best]:.3f}" if best == worst else f"{means[worst]:.3f} to {means[best]:.3f}"
        return f"{table.experiment}{where}: {which} above chance, {table.chance(value):.3f}: {ends}"
    if best == worst:
        return f"{table.experiment}: {best} {means[best]:.3f}{where}"
    intervals = {row.label: table.interval(row, value) for row in rows}
    # intervals of losses are over texts that all models share: they do not say which differences are real
    if not table.lower_is_better and intervals[best][0] <= intervals[worst][1]:
        return f"{table.experiment}{where}: all level within their intervals, {means[worst]:.3f} to {means[best]:.3f}"
    chance = f"; at chance, {table.chance(value):.3f}: {', '.join(guessing)}" if guessing else ""
    return f"{table.experiment}{where}: from {worst} {means[worst]:.3f} to {best} {means[best]:.3f}{chance}"


def section(table: ResultTable, key: str) -> Section:
    """`key` names it in the page and its figures as files."""
    rows = table.measured()
    style = figures.styles([(row.label, row.family or row.label) for row in rows])
    charts: list[Chart] = []
    if table.by_state:
        return Section(table.title, "", [*frontiers(key, table), _table(key, table, style)])
    if table.axis and len(table.columns()) > 1:
        charts.append(_curve(key, table, rows, style))
    elif not table.axis and rows:
        charts.append(_spread(key, table, rows, style))
    if table.across:
        charts += [_heat_map(key, table, row) for row in rows]
    if any(point.by_distance for row in rows for point in row.points):
        charts.append(_by_distance(key, rows, style))
    return Section(table.title, "", [*charts, _table(key, table, style)])


def _curve(key: str, table: ResultTable, rows: Sequence[ResultRow], style: dict[str, Style]) -> Chart:
    values = table.columns()
    lines = []
    for row in rows:
        points = [table.at(row, value) for value in values]
        means = [statistics.fmean(point.value for point in own) for own in points]
        bands = [(own[0].low, own[0].high) for own in points] if not table.across else []
        lows, highs = [low for low, _ in bands], [high for _, high in bands]
        lines.append(Line(row.label, style[row.label], values, means, lows, highs))
    last_trained = max(_trained(table), default=math.inf)
    figure = figures.accuracy(lines, AXES.get(table.axis, table.axis), last_trained)
    mean = f", mean over {table.across}" if table.across else ""
    note = "; shaded: beyond training" if values[-1] > last_trained else ""
    return Chart(f"{key}-{table.axis}", figure, f"Accuracy by {table.axis}{mean}{note}.{figures.hidden(lines)}")


def _trained(table: ResultTable) -> list[float]:
    """The values of the axis in training."""
    return [problem.options[table.axis] for problem in table.train if table.axis in problem.options]


def _spread(key: str, table: ResultTable, rows: Sequence[ResultRow], style: dict[str, Style]) -> Chart:
    """Of an experiment with one test."""
    points = [row.points[0] for row in rows]
    lines = [
        Line(row.label, style[row.label], [0], [point.value], [point.low], [point.high])
        for row, point in zip(rows, points, strict=True)
    ]
    figure = figures.spread(lines, [point.by_seed for point in points], table.metric_title)
    pale = "; pale: each seed" if any(len(point.by_seed) > 1 for point in points) else ""
    return Chart(f"{key}-test", figure, f"{table.metric.capitalize()} with its 95 % interval{pale}.")


def _heat_map(key: str, table: ResultTable, row: ResultRow) -> Chart:
    columns = table.columns()
    across = list(dict.fromkeys(point.options[table.across] for point in row.points))
    found = {(point.options[table.across], point.options[table.axis]): point.value for point in row.points}
    values = [[found[y, x] for x in columns] for y in across]
    trained = _trained(table)
    figure = figures.heat_map(columns, across, values, table.axis, table.across, max(trained, default=math.inf))
    note = "; right of the line: longer than in training" if trained else ""
    caption = f"{row.label}: {table.across} by {table.axis}{note}."
    return Chart(f"{key}-{table.rows.index(row)}", figure, caption)


def _by_distance(key: str, rows: Sequence[ResultRow], style: dict[str, Style]) -> Chart:
    """Of the last test, the hardest."""
    lines = []
    for row in rows:
        buckets = row.points[-1].by_distance
        lines.append(Line(row.label, style[row.label], [b.start for b in buckets], [b.accuracy for b in buckets]))
    figure = figures.accuracy(lines, "tokens since the key occurred, from")
    caption = f"Accuracy of the last test by distance, in doublings.{figures.hidden(lines)}"
    return Chart(f"{key}-distance", figure, caption)


def _table(key: str, table: ResultTable, style: dict[str, Style]) -> DataTable:
    columns = [Column("mixer", numeric=False), Column("learning rate")]
    columns += [Column(column_title(table, value)) for value in table.columns()]
    compared = any(row.against for row in table.rows)
    columns += [Column("seed by seed")] * compared
    columns += [Column("steps"), Column("parameters"), Column("state"), Column(time_title(table))]
    blank = len(columns) - 1
    columns += [Column("published elsewhere", numeric=False)] * bool(table.source)
    rows = []
    for row in table.ordered():
        if row.points:
            cells = [Cell(row.label, swatch=style[row.label].color), *_cells(table, row, compared)]
        else:
            note = "; ".join(row.errors) or "unfinished"
            cells = [Cell(row.label, note=note), *(Cell("–") for _ in range(blank))]
        rows.append(cells + [Cell(row.published)] * bool(table.source))
    return DataTable(f"table-{key}", columns, rows, "; ".join(note.rstrip(".") for note in footnotes(table)))


def _cells(table: ResultTable, row: ResultRow, compared: bool) -> list[Cell]:
    """The cells between the label and the published figure."""
    grid = ", ".join(f"{tried.learning_rate:g}:\N{NO-BREAK SPACE}{tried.value:.3f}" for tried in row.validation)
    return [
        Cell(f"{row.learning_rate:g}", row.learning_rate, f"validation {grid}") if grid else Cell("–"),
        *(_accuracy(table, row, value) for value in table.columns()),
        *([_against(table, row)] if compared else []),
        Cell(steps_text(row) or "–", max(row.steps, default=0)),
        Cell(f"{row.parameters:,}", row.parameters),
        Cell(state_text(table, row) or "–", row.points[-1].state_bytes),
        Cell(f"{row.seconds:.0f}", row.seconds),
    ]


def _accuracy(table: ResultTable, row: ResultRow, value: Any) -> Cell:
    """With its interval, and with a word where guessing would do as well."""
    points = table.at(row, value)
    mean = statistics.fmean(point.value for point in points)
    note = f"{points[0].low:.3f} to {points[0].high:.3f}" if len(points) == 1 else ""
    notes = [note] * bool(note) + ["chance"] * table.at_chance(row, value)
    return Cell(f"{mean:.3f}", mean, ", ".join(notes))


def _against(table: ResultTable, row: ResultRow) -> Cell:
    if row.against is None:
        return Cell("–")
    difference = row.against.difference
    lines = (line.replace(" ", "\N{NO-BREAK SPACE}") for line in against_text(table, row))
    return Cell(f"{difference:+.3f}", difference, " ".join(lines).removeprefix(f"{difference:+.3f}\N{NO-BREAK SPACE}"))


def settings(table: ResultTable) -> Code:
    values = table.to_json()
    lines = [f"{name}: {json.dumps(values[name])}" for name in ("setting", "learning_rates", "seeds", "metric")]
    lines += [f"{part}: {json.dumps(problem)}" for part in ("train", "validate") for problem in values[part]]
    for row in table.rows:
        wide = f", MLPs {row.inner} wide" if row.inner else ""
        lines.append(f"{row.label}: {' + '.join(row.mixers)} {json.dumps(row.options)}{wide}")
    return Code(f"Settings of {table.experiment}", "\n".join(lines))
