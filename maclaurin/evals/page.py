"""A suite as a page: accuracy against pairs or lengths with the trained ones shaded, heat maps, and the table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from maclaurin.common.sizes import size_text
from maclaurin.evals.tables import against_text, at, column_title, columns_of, footnotes, grid_of, steps_text, time_title
from maclaurin.machine.inventory import devices, versions
from maclaurin.page import figures
from maclaurin.page.figures import Line, Style
from maclaurin.page.html import Cell, Chart, Code, Column, DataTable, Page, Section

AXES = {"pairs": "pairs to remember", "length": "length", "longest": "letters"}

LEAD = (
    "Every cell trains a model of its own at an equal budget. The learning rate of a row is the best of the grid by "
    "validation accuracy, which no test has a part in. Intervals are 95 %: Wilson's over examples and, with several "
    "seeds, the wider one of it and the bootstrap over seeds."
)
LEAD_OF_A_MODEL = (
    "A trained model continues every prompt greedily, in tokens of its own. Intervals are 95 %: Wilson's over prompts."
)


def page(results: dict[str, Any]) -> Page:
    tables = results["tables"]
    made = {"command": results["command"], **versions(), **devices()}
    sections = [section(table, table["experiment"]) for table in tables]
    sections.append(
        Section(
            "How it was made",
            "The same command goes on where it was interrupted, and gives the same numbers again on the same machine.",
            [Code("Command and versions", "\n".join(f"{name}: {value}" for name, value in made.items() if value))]
            + [settings(table) for table in tables],
        )
    )
    lead = LEAD if any(table["setting"] for table in tables) else LEAD_OF_A_MODEL
    return Page(f"Maclaurin: {results['suite']}", headline(tables[0]), [lead], sections)


def headline(table: dict[str, Any]) -> str:
    rows = [row for row in table["rows"] if row["points"]]
    if not rows:
        return "No cell has finished yet"
    value = columns_of(table)[-1]
    means = {row["label"]: statistics.fmean(point["value"] for point in at(row, table, value)) for row in rows}
    where = "" if value is None else f" at {column_title(table, value)}"
    best, worst = max(means, key=lambda label: means[label]), min(means, key=lambda label: means[label])
    if best == worst:
        return f"{table['experiment']}: {best} {means[best]:.3f}{where}"
    return f"{table['experiment']}{where}: from {worst} {means[worst]:.3f} to {best} {means[best]:.3f}"


def section(table: dict[str, Any], key: str) -> Section:
    """`key` names it in the page and its figures as files."""
    rows = [row for row in table["rows"] if row["points"]]
    style = figures.styles([(row["label"], row["label"]) for row in rows])
    charts: list[Chart] = []
    if table["axis"] and len(columns_of(table)) > 1:
        charts.append(_curve(key, table, rows, style))
    elif not table["axis"] and rows:
        charts.append(_spread(key, rows, style))
    if table["across"]:
        charts += [_heat_map(key, table, row) for row in rows]
    if any(point["by_distance"] for row in rows for point in row["points"]):
        charts.append(_by_distance(key, table, rows, style))
    return Section(table["title"], "", [*charts, _table(key, table, style)])


def _curve(key: str, table: dict[str, Any], rows: Sequence[dict[str, Any]], style: dict[str, Style]) -> Chart:
    values = columns_of(table)
    lines = []
    for row in rows:
        points = [at(row, table, value) for value in values]
        bands = [(own[0]["low"], own[0]["high"]) for own in points] if not table["across"] else []
        lines.append(
            Line(
                row["label"],
                style[row["label"]],
                values,
                [statistics.fmean(point["value"] for point in own) for own in points],
                [low for low, _ in bands],
                [high for _, high in bands],
            )
        )
    last_trained = max((problem[table["axis"]] for problem in table["train"] if table["axis"] in problem), default=math.inf)
    figure = figures.accuracy(lines, AXES.get(table["axis"], table["axis"]), last_trained)
    mean = f", mean over {table['across']}" if table["across"] else ""
    note = "; shaded: beyond training" if values[-1] > last_trained else ""
    return Chart(f"{key}-{table['axis']}", figure, f"Accuracy by {table['axis']}{mean}{note}.")


def _spread(key: str, rows: Sequence[dict[str, Any]], style: dict[str, Style]) -> Chart:
    """Of an experiment with one test."""
    points = [row["points"][0] for row in rows]
    lines = [
        Line(row["label"], style[row["label"]], [0], [point["value"]], [point["low"]], [point["high"]])
        for row, point in zip(rows, points, strict=True)
    ]
    figure = figures.spread(lines, [point["by_seed"] for point in points], "accuracy")
    return Chart(f"{key}-test", figure, "Accuracy with its 95 % interval; pale: each seed.")


def _heat_map(key: str, table: dict[str, Any], row: dict[str, Any]) -> Chart:
    columns = columns_of(table)
    across = list(dict.fromkeys(point[table["across"]] for point in row["points"]))
    found = {(point[table["across"]], point[table["axis"]]): point["value"] for point in row["points"]}
    values = [[found[y, x] for x in columns] for y in across]
    trained = [problem[table["axis"]] for problem in table["train"]]
    figure = figures.heat_map(columns, across, values, table["axis"], table["across"], max(trained, default=math.inf))
    note = "; right of the line: longer than in training" if trained else ""
    caption = f"{row['label']}: {table['across']} by {table['axis']}{note}."
    return Chart(f"{key}-{table['rows'].index(row)}", figure, caption)


def _by_distance(key: str, table: dict[str, Any], rows: Sequence[dict[str, Any]], style: dict[str, Style]) -> Chart:
    """Of the last test, the hardest."""
    lines = []
    for row in rows:
        buckets = row["points"][-1]["by_distance"]
        lines.append(Line(row["label"], style[row["label"]], [b["from"] for b in buckets], [b["accuracy"] for b in buckets]))
    figure = figures.accuracy(lines, "tokens since the key was said, from")
    return Chart(f"{key}-distance", figure, "Accuracy of the last test by distance, in doublings.")


def _table(key: str, table: dict[str, Any], style: dict[str, Style]) -> DataTable:
    values = columns_of(table)
    columns = [Column("mixer", numeric=False), Column("learning rate")]
    columns += [Column(column_title(table, value)) for value in values]
    compared = any(row.get("against") for row in table["rows"])
    if compared:
        columns.append(Column("seed by seed"))
    columns += [Column("steps"), Column("parameters"), Column("state"), Column(time_title(table))]
    if table["source"]:
        columns.append(Column("published elsewhere", numeric=False))
    rows = []
    for row in table["rows"]:
        label = row["label"]
        grid = ", ".join(f"{rate:g}:\N{NO-BREAK SPACE}{score:.3f}" for rate, score in grid_of(row))
        published = [Cell(row["published"])] if table["source"] else []
        if not row["points"]:
            text = "; ".join(row["errors"]) or "unfinished"
            blank = len(columns) - 1 - len(published)
            rows.append([Cell(label, note=text), *(Cell("–") for _ in range(blank)), *published])
            continue
        state = row["points"][-1]["state_bytes"]
        rows.append(
            [
                Cell(label, swatch=style[label].color),
                Cell(f"{row['learning_rate']:g}", row["learning_rate"], f"validation {grid}") if grid else Cell("–"),
                *(_accuracy(at(row, table, value)) for value in values),
                *([_against(row)] if compared else []),
                Cell(steps_text(row) or "–", max(row.get("steps", [0]))),
                Cell(f"{row['parameters']:,}", row["parameters"]),
                Cell("–") if state is None else Cell(size_text(state), state),
                Cell(f"{row['seconds']:.0f}", row["seconds"]),
                *published,
            ]
        )
    return DataTable(f"table-{key}", columns, rows, "; ".join(note.rstrip(".") for note in footnotes(table)))


def _accuracy(points: Sequence[dict[str, Any]]) -> Cell:
    mean = statistics.fmean(point["value"] for point in points)
    note = f"{points[0]['low']:.3f}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{points[0]['high']:.3f}" if len(points) == 1 else ""
    return Cell(f"{mean:.3f}", mean, note)


def _against(row: dict[str, Any]) -> Cell:
    if not row.get("against"):
        return Cell("–")
    difference = row["against"]["difference"]
    lines = (line.replace(" ", "\N{NO-BREAK SPACE}") for line in against_text(row))
    return Cell(f"{difference:+.3f}", difference, " ".join(lines).removeprefix(f"{difference:+.3f}\N{NO-BREAK SPACE}"))


def settings(table: dict[str, Any]) -> Code:
    lines = [f"{name}: {json.dumps(table[name])}" for name in ("setting", "learning_rates", "seeds", "metric")]
    lines += [f"{part}: {json.dumps(problem)}" for part in ("train", "validate") for problem in table.get(part, [])]
    for row in table["rows"]:
        wide = f", MLPs {row['inner']} wide" if row.get("inner") else ""
        lines.append(f"{row['label']}: {' + '.join(row['mixers'])} {json.dumps(row['options'])}{wide}")
    return Code(f"Settings of {table['experiment']}", "\n".join(lines))
