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
    """The best conversion, in a sentence: the source, the conversion before and after training, and on what it trained."""
    last = [(result, list(result.stages.values())[-1]) for result in results]
    vectors = [(stage, result) for result, stage in last if isinstance(stage, VectorAgreement)]
    if vectors:
        stage, best = max(vectors, key=lambda pair: pair[0].cosine)
        before = best.untrained
        from_ = f", from {before.cosine:.4f} before" if isinstance(before, VectorAgreement) and before is not stage else ""
        return f"{_both(best)}: vectors at a cosine of {stage.cosine:.4f} to those of the source{from_} {_training(best)}"
    tokens = [(stage, result) for result, stage in last if isinstance(stage, TokenAgreement)]
    found, best = min(tokens, key=lambda pair: pair[0].loss - pair[0].teacher_loss)
    untrained = best.untrained
    assert isinstance(untrained, TokenAgreement)
    source = f"{_both(best)}: loss {found.loss:.4f}, the source {found.teacher_loss:.4f}"
    if found is untrained:
        return f"{source}; not trained yet"
    return (
        f"{source}, untrained {untrained.loss:.4f} ({found.gap_closed(untrained):.0%} of the gap closed) {_training(best)}"
    )


def _both(result: Figures) -> str:
    return f"{Path(result.plan.source).name} as {result.plan.title}"


def _training(result: Figures) -> str:
    """What the stages that are done have seen."""
    steps = {"transfer": result.plan.transfer_steps, "recover": result.plan.recover_steps}
    done = sum(count for stage, count in steps.items() if stage in result.stages)
    corpus = Path(result.plan.corpus).name or result.plan.corpus
    return f"after {done:,} steps on {corpus}" if done else "without training"


def section(results: Sequence[Figures]) -> Section:
    intro = (
        "Trained softmax models converted to linear attention. Cosine and Spearman correlation compare the vectors of "
        "validation sentences, and the similarities of all pairs of them, with those of the source; losses are those of "
        "validation text. The error of a layer is that of its attention’s output for the source’s input, over the variance "
        "of the source’s output; KL compares the attention weights. Each is one conversion with one seed."
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
        for name, stage in result.in_order():
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
        times = {
            "source": ([row.source_ms for row in cost], [row.source_quartiles for row in cost]),
            result.plan.title: ([row.converted_ms for row in cost], [row.converted_quartiles for row in cost]),
        }
        lines = []
        for (name, (medians, quartiles)), color, symbol in zip(times.items(), PALETTE, SYMBOLS, strict=False):
            known = [ends for ends in quartiles if ends is not None]
            low, high = zip(*known, strict=True) if len(known) == len(medians) else ((), ())
            values, lows, highs = ([ms / 1000 for ms in several] for several in (medians, low, high))
            lines.append(Line(name, Style(color, symbol), lengths, values, lows, highs))
        loads = [row.load for row in cost if row.load is not None]
        beside = f" at a load of {min(loads):.1f} to {max(loads):.1f}" if loads else ""
        shown = "medians and quartiles" if lines[0].low else "medians"
        caption = f"Forward of one sequence, {result.plan.title} from {Path(result.plan.source).name}: {shown}{beside}."
        parts.append(Chart(f"conversion-time-{number}", figures.against_length(lines, "time of a forward", "s"), caption))
        rows = [
            [
                _number(row.length, "{:,d}"),
                _time(row.source_ms, row.source_quartiles),
                _time(row.converted_ms, row.converted_quartiles),
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


def _time(median: float, quartiles: tuple[float, float] | None) -> Cell:
    """Milliseconds, with the quartiles below them."""
    note = "" if quartiles is None else f"{quartiles[0]:.0f} to {quartiles[1]:.0f}"
    return Cell(f"{median:.0f} ms", median, note)


def _number(value: float | None, form: str) -> Cell:
    return Cell("") if value is None else Cell(form.format(value), float(value))
