"""Conversions as a section of a page: what every stage gave, layer by layer, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from maclaurin.common.files import naming, read_json
from maclaurin.common.sizes import size_text
from maclaurin.convert.tables import STAGES, command_of, gap_closed, name_of
from maclaurin.page import figures
from maclaurin.page.figures import PALETTE, SYMBOLS, Line, Style
from maclaurin.page.html import Cell, Chart, Column, DataTable, Section

FIGURES = "evaluation.json"


def conversions(folders: Sequence[Path], broken: Callable[[str], None]) -> list[dict[str, Any]]:
    """The figures of all conversions in the folders and below; `broken` is told of files that cannot be shown."""
    found = []
    for file in sorted({file for folder in folders for file in folder.rglob(FIGURES)}):
        try:
            with naming(file):
                result = read_json(file)
                if "stages" not in result or "plan" not in result:
                    continue  # of something else
                section([result]).html()
                headline([result])
        except ValueError as error:
            broken(str(error))
        else:
            found.append(result)
    return found


def headline(results: Sequence[dict[str, Any]]) -> str:
    """The best conversion, in a sentence."""
    last = [(result, list(result["stages"])[-1]) for result in results]
    vectors = [(result["stages"][stage]["cosine"], result) for result, stage in last if "cosine" in result["stages"][stage]]
    if vectors:
        cosine, best = max(vectors, key=lambda pair: pair[0])
        return f"{name_of(best['plan'])}: vectors at a cosine of {cosine:.4f} to those of the source"
    closed, best = max(((gap_closed(result, stage), result) for result, stage in last), key=lambda pair: pair[0])
    return f"{name_of(best['plan'])}: {closed:.0%} of the loss that conversion cost is won back"


def section(results: Sequence[dict[str, Any]]) -> Section:
    intro = (
        "Trained softmax models made linear. Cosine and Spearman correlation compare the vectors of held-out sentences, and "
        "the similarities of all pairs of them, with those of the source; losses are those of held-out text. The error of a "
        "layer is that of its attention’s output for the source’s input, over the variance of what it should be; KL "
        "compares the weights."
    )
    parts: list[Chart | DataTable] = [_table(results), _layers(results)]
    if measured := [result for result in results if result.get("cost")]:
        parts += _cost(measured)
    parts.append(_commands(results))
    return Section("Conversions", intro, parts)


def _table(results: Sequence[dict[str, Any]]) -> DataTable:
    """Only with the columns that one of these conversions has a figure for."""
    titles = (
        "cosine",
        "lowest tenth",
        "Spearman",
        "loss",
        "source’s loss",
        "gap closed",
        "same token",
        "seconds",
        "of all cores",
    )
    columns = [Column(title, numeric=False) for title in ("source", "student", "after")] + [
        Column(title) for title in titles
    ]
    rows = []
    for result in results:
        for stage in (name for name in STAGES if name in result["stages"]):
            row = result["stages"][stage]
            closed = gap_closed(result, stage) if "loss" in row else None
            values = [row.get(key) for key in ("cosine", "lowest_tenth", "spearman", "loss", "teacher_loss")]
            cells = [_number(value, "{:.4f}") for value in values]
            cells += [
                _number(closed, "{:.0%}"),
                _number(row.get("same_token"), "{:.1%}"),
                *(_number(row.get(key), "{:.0f}") for key in ("seconds", "cpu_seconds")),
            ]
            rows.append([*_named(result), Cell(stage), *cells])
    filled = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    return DataTable(
        "conversions",
        [columns[index] for index in filled],
        [[row[index] for index in filled] for row in rows],
        "Source and converted model on the same held-out data.",
    )


def _layers(results: Sequence[dict[str, Any]]) -> DataTable:
    titles = ("layer", *(f"{figure}, {stage}" for stage in STAGES for figure in ("error", "KL")))
    columns = [Column("source", numeric=False), Column("student", numeric=False), *(Column(title) for title in titles)]
    rows = []
    for result in results:
        count = len(result["stages"]["untrained"]["layers"])
        for layer in range(count):
            found = [result["stages"].get(stage, {}).get("layers", [{}] * count)[layer] for stage in STAGES]
            cells = [_number(row.get(key), "{:.4f}") for row in found for key in ("error", "kl")]
            rows.append([*_named(result), _number(layer, "{:d}"), *cells])
    return DataTable("conversion-layers", columns, rows, "How near each layer’s attention is to the source’s.")


def _cost(results: Sequence[dict[str, Any]]) -> list[Chart | DataTable]:
    parts: list[Chart | DataTable] = []
    columns = [Column(title) for title in ("length", "source", "converted", "times faster", "source’s memory", "memory")]
    for number, result in enumerate(results):
        cost = result["cost"]
        lengths = [row["length"] for row in cost]
        lines = [
            Line(name, Style(color, symbol), lengths, [row[f"{key}_ms"] / 1000 for row in cost])
            for name, key, color, symbol in zip(
                ("source", name_of(result["plan"])), ("source", "converted"), PALETTE, SYMBOLS, strict=False
            )
        ]
        caption = f"Forward of one sequence, {name_of(result['plan'])} from {Path(result['plan']['source']).name}."
        parts.append(Chart(f"conversion-time-{number}", figures.against_length(lines, "time of a forward", "s"), caption))
        rows = [
            [
                _number(row["length"], "{:,d}"),
                *(_number(row[f"{key}_ms"], "{:.0f} ms") for key in ("source", "converted")),
                _number(row["ratio"], "{:.2f}"),
                *(Cell(size_text(row[f"{key}_bytes"]), row[f"{key}_bytes"]) for key in ("source", "converted")),
            ]
            for row in cost
        ]
        parts.append(DataTable(f"conversion-cost-{number}", columns, rows, caption))
    return parts


def _commands(results: Sequence[dict[str, Any]]) -> DataTable:
    columns = [Column(title, numeric=False) for title in ("source", "student", "command")]
    rows = [[*_named(result), Cell(command_of(result["plan"]), code=True)] for result in results]
    return DataTable(
        "conversion-commands", columns, rows, "The command of each conversion; what it leaves out is the default."
    )


def _named(result: dict[str, Any]) -> list[Cell]:
    return [Cell(Path(result["plan"]["source"]).name), Cell(name_of(result["plan"]))]


def _number(value: float | None, form: str) -> Cell:
    return Cell("") if value is None else Cell(form.format(value), float(value))
