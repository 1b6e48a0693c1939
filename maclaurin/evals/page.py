"""A suite as a page: accuracy against pairs or lengths with the trained ones shaded, heat maps, and the table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from maclaurin.doctor import devices, versions
from maclaurin.evals.show import at, columns_of, grid_of
from maclaurin.mixers.overview import size_text
from maclaurin.report import figures
from maclaurin.report.figures import Line, Style
from maclaurin.report.page import Cell, Chart, Code, Column, DataTable, Page, Section

AXES = {"pairs": "pairs to remember", "length": "length", "longest": "letters"}


def page(results: dict[str, Any]) -> Page:
    tables = results["tables"]
    made = {"command": results["command"], **versions(), **devices()}
    sections = [_section(table) for table in tables]
    sections.append(
        Section(
            "How it was made",
            "The same command goes on where it was interrupted, and gives the same numbers again on the same machine.",
            [Code("Command and versions", "\n".join(f"{name}: {value}" for name, value in made.items() if value))]
            + [Code(f"Settings of {table['experiment']}", _settings(table)) for table in tables],
        )
    )
    trained_here = (
        "Every cell trains a model of its own at an equal budget. The learning rate of a row is the best of the grid by "
        "validation accuracy, which no test has a part in. Intervals are 95 %: Wilson's over examples and, with several "
        "seeds, the wider one of it and the bootstrap over seeds."
    )
    saved = (
        "A trained model continues every prompt greedily, in tokens of its own. Intervals are 95 %: Wilson's over prompts."
    )
    lead = [trained_here if any(table["setting"] for table in tables) else saved]
    return Page(f"Maclaurin: {results['suite']}", _headline(tables[0]), lead, sections)


def _headline(table: dict[str, Any]) -> str:
    rows = [row for row in table["rows"] if row["points"]]
    if not rows:
        return "No cell has finished yet"
    value = columns_of(table)[-1]
    means = {row["label"]: statistics.fmean(point["value"] for point in at(row, table, value)) for row in rows}
    where = "" if value is None else f" at {value} {AXES.get(table['axis'], table['axis'])}"
    best, worst = max(means, key=lambda label: means[label]), min(means, key=lambda label: means[label])
    if best == worst:
        return f"{table['experiment']}: {best} {means[best]:.3f}{where}"
    return f"{table['experiment']}{where}: from {worst} {means[worst]:.3f} to {best} {means[best]:.3f}"


def _section(table: dict[str, Any]) -> Section:
    rows = [row for row in table["rows"] if row["points"]]
    style = figures.styles([(row["label"], row["label"]) for row in rows])
    charts: list[Chart] = []
    if table["axis"] and len(columns_of(table)) > 1:
        charts.append(_curve(table, rows, style))
    if table["across"]:
        charts += [_heat_map(table, row) for row in rows]
    if any(point["by_distance"] for row in rows for point in row["points"]):
        charts.append(_by_distance(table, rows, style))
    return Section(table["title"], "", [*charts, _table(table, style)])


def _curve(table: dict[str, Any], rows: Sequence[dict[str, Any]], style: dict[str, Style]) -> Chart:
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
    trained = [problem[table["axis"]] for problem in table["train"] if table["axis"] in problem]
    shaded = (min(trained), max(trained)) if trained else None
    figure = figures.accuracy(lines, AXES.get(table["axis"], table["axis"]), shaded)
    mean = f", mean over {table['across']}" if table["across"] else ""
    note = "; shaded: as in training" if shaded else ""
    return Chart(f"{table['experiment']}-{table['axis']}", figure, f"Accuracy by {table['axis']}{mean}{note}.")


def _heat_map(table: dict[str, Any], row: dict[str, Any]) -> Chart:
    columns = columns_of(table)
    across = list(dict.fromkeys(point[table["across"]] for point in row["points"]))
    found = {(point[table["across"]], point[table["axis"]]): point["value"] for point in row["points"]}
    values = [[found[y, x] for x in columns] for y in across]
    trained = [problem[table["axis"]] for problem in table["train"]]
    figure = figures.heat_map(columns, across, values, table["axis"], table["across"], max(trained, default=math.inf))
    note = "; right of the line: longer than in training" if trained else ""
    caption = f"{row['label']}: {table['across']} by {table['axis']}{note}."
    return Chart(f"{table['experiment']}-{table['rows'].index(row)}", figure, caption)


def _by_distance(table: dict[str, Any], rows: Sequence[dict[str, Any]], style: dict[str, Style]) -> Chart:
    """Of the last test, the hardest."""
    lines = []
    for row in rows:
        buckets = row["points"][-1]["by_distance"]
        lines.append(Line(row["label"], style[row["label"]], [b["from"] for b in buckets], [b["accuracy"] for b in buckets]))
    figure = figures.accuracy(lines, "tokens since the key was said, from", None)
    return Chart(f"{table['experiment']}-distance", figure, "Accuracy of the last test by distance, in doublings.")


def _table(table: dict[str, Any], style: dict[str, Style]) -> DataTable:
    values = columns_of(table)
    columns = [Column("mixer", numeric=False), Column("learning rate")]
    columns += [Column("test" if value is None else f"{value} {table['axis']}") for value in values]
    columns += [Column("parameters"), Column("state"), Column("seconds a run")]
    if table["source"]:
        columns.append(Column("published elsewhere", numeric=False))
    rows = []
    for row in table["rows"]:
        label = row["label"]
        grid = ", ".join(f"{rate:g}: {score:.3f}" for rate, score in grid_of(row))
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
                Cell(f"{row['parameters']:,}", row["parameters"]),
                Cell("–") if state is None else Cell(size_text(state), state),
                Cell(f"{row['seconds']:.0f}", row["seconds"]),
                *published,
            ]
        )
    caption = f"Published: {table['source']}" if table["source"] else ""
    return DataTable(f"table-{table['experiment']}", columns, rows, caption)


def _accuracy(points: Sequence[dict[str, Any]]) -> Cell:
    mean = statistics.fmean(point["value"] for point in points)
    note = f"{points[0]['low']:.3f} to {points[0]['high']:.3f}" if len(points) == 1 else ""
    return Cell(f"{mean:.3f}", mean, note)


def _settings(table: dict[str, Any]) -> str:
    lines = [f"{name}: {json.dumps(table[name])}" for name in ("setting", "learning_rates", "seeds", "metric")]
    lines += [f"train: {json.dumps(problem)}" for problem in table["train"]]
    lines += [f"{row['label']}: {' + '.join(row['mixers'])} {json.dumps(row['options'])}" for row in table["rows"]]
    return "\n".join(lines)
