"""Results of the lab as sections of a page, their plots as Plotly figures."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.lab.result import Grid, Matrix, Plot, Result, cells, text_of
from maclaurin.page import figures
from maclaurin.page.figures import Line
from maclaurin.page.html import Cell, Chart, Column, DataTable, Page, Section

LEAD = "Every number is computed by maclaurin lab, with the settings and the seed that stand beside it."


def page(results: Sequence[Result]) -> Page:
    return Page("Maclaurin: the lab", headline(results), [LEAD], sections(results))


def headline(results: Sequence[Result]) -> str:
    if len(results) == 1:
        return results[0].title
    claims = [claim for result in results for claim in result.claims if claim.held is not None]
    return f"{sum(claim.held is True for claim in claims)} of {len(claims)} claims held"


def sections(results: Sequence[Result]) -> list[Section]:
    """Of several, all claims first, then a section per experiment; of one, its claims last, as in the terminal."""
    each = [_section(result) for result in results]
    return [*each, _claims(results)] if len(results) == 1 else [_claims(results), *each]


def _claims(results: Sequence[Result]) -> Section:
    columns = [Column(title, numeric=False) for title in ("", "claim", "source", "expected", "measured", "held")]
    claims = [(result.name, claim) for result in results for claim in result.claims]
    rows = [[Cell(text) for text in cells(name, claim)] for name, claim in claims]
    failed = [f"{name} {claim.key}: {claim.text}" for name, claim in claims if claim.held is False]
    intro = f"NOT held: {'; '.join(failed)}." if failed else ""
    return Section("Claims", intro, [DataTable("lab-claims", columns, rows)])


def _section(result: Result) -> Section:
    tables = [_grid(f"lab-{result.name}-{index}", grid) for index, grid in enumerate(result.grids)]
    intro = " ".join((f"Settings: {result.setting_text()}.", *result.notes))
    return Section(f"{result.name}: {result.title}", intro, [*result.plot(), *tables])


def _grid(key: str, grid: Grid) -> DataTable:
    columns = [Column(title, numeric=numeric) for title, numeric in zip(grid.columns, grid.numeric(), strict=True)]
    rows = [
        [Cell(text_of(value), float(value) if isinstance(value, (int, float)) else None) for value in row]
        for row in grid.rows
    ]
    return DataTable(key, columns, rows, grid.title)


def chart(experiment: str, plot: Plot | Matrix, setting: str) -> Chart:
    """The settings and the seed are part of the caption."""
    hidden = ""
    if isinstance(plot, Matrix):
        figure = figures.matrix(plot.values, plot.x_title, plot.y_title)
    else:
        style = figures.styles([(name, name) for name in dict.fromkeys(curve.name for curve in plot.curves)])
        lines = [
            Line(curve.name, style[curve.name], curve.x, curve.y, curve.low, curve.high, faint=curve.dashed)
            for curve in plot.curves
        ]
        figure = figures.curves(lines, plot.x_title, plot.y_title, log_x=plot.log_x, log_y=plot.log_y)
        hidden = figures.hidden(lines, log=plot.log_y)
    return Chart(f"{experiment}-{plot.key}", figure, f"{plot.caption}{hidden} ({setting})")
