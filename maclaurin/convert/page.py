"""Conversions as a section of a page: the figures of every stage, layer by layer, and the cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from maclaurin.common.files import naming, read_json
from maclaurin.common.sizes import size_text
from maclaurin.convert.result import FIGURES, STAGES, Figures, TokenAgreement, VectorAgreement
from maclaurin.page import figures
from maclaurin.page.figures import PALETTE, SYMBOLS, Line, Style
from maclaurin.page.html import Cell, Chart, Column, DataTable, Section


def conversions(folders: Sequence[Path], broken: Callable[[str], None]) -> list[Figures]:
    """The figures of all conversions in the folders and below; `broken` is called with files that cannot be shown."""
    found = []
    for file in sorted({file for folder in folders for file in folder.rglob(FIGURES)}):
        try:
            with naming(file):
                values = read_json(file)
                if "stages" not in values or "plan" not in values:
                    continue  # of something else
                result = Figures.from_json(values)
                section([result]).html()
        except ValueError as error:
            broken(str(error))
        else:
            found.append(result)
    return found


def headline(results: Sequence[Figures]) -> str:
    """The best conversion, in a sentence."""
    last = [(result, list(result.stages.values())[-1]) for result in results]
    vectors = [(stage.cosine, result) for result, stage in last if isinstance(stage, VectorAgreement)]
    if vectors:
        cosine, best = max(vectors, key=lambda pair: pair[0])
        return f"{best.plan.title}: vectors at a cosine of {cosine:.4f} to those of the source"
    tokens = [(stage.gap_closed(result.untrained), result) for result, stage in last if isinstance(stage, TokenAgreement)]
    closed, best = max(tokens, key=lambda pair: pair[0])
    return f"{best.plan.title}: {closed:.0%} of the loss gap of the conversion is closed"


def section(results: Sequence[Figures]) -> Section:
    intro = (
        "Trained softmax models converted to linear attention. Cosine and Spearman correlation compare the vectors of "
        "validation sentences, and the similarities of all pairs of them, with those of the source; losses are those of "
        "validation text. The error of a layer is that of its attention’s output for the source’s input, over the variance "
        "of the source’s output; KL compares the attention weights."
    )
    parts: list[Chart | DataTable] = [_table(results), _layers(results)]
    if measured := [result for result in results if result.cost]:
        parts += _cost(measured)
    parts.append(_commands(results))
    return Section("Conversions", intro, parts)


def _table(results: Sequence[Figures]) -> DataTable:
    """Only columns for which at least one conversion has a figure."""
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
        for name, stage in result.stages.items():
            keys = ("cosine", "lowest_tenth", "spearman", "loss", "teacher_loss")
            closed = stage.gap_closed(result.untrained) if isinstance(stage, TokenAgreement) else None
            cells = [_number(getattr(stage, key, None), "{:.4f}") for key in keys]
            cells += [
                _number(closed, "{:.0%}"),
                _number(getattr(stage, "same_token", None), "{:.1%}"),
                *(_number(seconds, "{:.0f}") for seconds in (stage.seconds, stage.cpu_seconds)),
            ]
            rows.append([*_named(result), Cell(name), *cells])
    filled = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    return DataTable(
        "conversions",
        [columns[index] for index in filled],
        [[row[index] for index in filled] for row in rows],
        "Source and converted model on the same validation data.",
    )


def _layers(results: Sequence[Figures]) -> DataTable:
    titles = ("layer", *(f"{figure}, {stage}" for stage in STAGES for figure in ("error", "KL")))
    columns = [Column("source", numeric=False), Column("student", numeric=False), *(Column(title) for title in titles)]
    rows = []
    for result in results:
        found = [result.stages[stage].layers if stage in result.stages else () for stage in STAGES]
        for place in range(len(result.untrained.layers)):
            cells = []
            for layers in found:
                error, kl = (layers[place].error, layers[place].kl) if layers else (None, None)
                cells += [_number(error, "{:.4f}"), _number(kl, "{:.4f}")]
            rows.append([*_named(result), _number(place, "{:d}"), *cells])
    return DataTable("conversion-layers", columns, rows, "How close each layer’s attention is to the source’s.")


def _cost(results: Sequence[Figures]) -> list[Chart | DataTable]:
    parts: list[Chart | DataTable] = []
    columns = [Column(title) for title in ("length", "source", "converted", "times faster", "source’s memory", "memory")]
    for number, result in enumerate(results):
        cost = result.cost or ()
        lengths = [row.length for row in cost]
        times = {"source": [row.source_ms for row in cost], result.plan.title: [row.converted_ms for row in cost]}
        lines = [
            Line(name, Style(color, symbol), lengths, [ms / 1000 for ms in values])
            for (name, values), color, symbol in zip(times.items(), PALETTE, SYMBOLS, strict=False)
        ]
        caption = f"Forward of one sequence, {result.plan.title} from {Path(result.plan.source).name}."
        parts.append(Chart(f"conversion-time-{number}", figures.against_length(lines, "time of a forward", "s"), caption))
        rows = [
            [
                _number(row.length, "{:,d}"),
                *(_number(ms, "{:.0f} ms") for ms in (row.source_ms, row.converted_ms)),
                _number(row.ratio, "{:.2f}"),
                *(Cell(size_text(nbytes), nbytes) for nbytes in (row.source_bytes, row.converted_bytes)),
            ]
            for row in cost
        ]
        parts.append(DataTable(f"conversion-cost-{number}", columns, rows, caption))
    return parts


def _commands(results: Sequence[Figures]) -> DataTable:
    columns = [Column(title, numeric=False) for title in ("source", "student", "command")]
    rows = [[*_named(result), Cell(result.plan.command(), code=True)] for result in results]
    return DataTable(
        "conversion-commands", columns, rows, "The command of each conversion; what it leaves out is the default."
    )


def _named(result: Figures) -> list[Cell]:
    return [Cell(Path(result.plan.source).name), Cell(result.plan.title)]


def _number(value: float | None, form: str) -> Cell:
    return Cell("") if value is None else Cell(form.format(value), float(value))
