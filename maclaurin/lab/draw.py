"""Plots of the lab as Plotly figures."""

from __future__ import annotations

import plotly.graph_objects as go

from maclaurin.lab.result import Matrix, Plot
from maclaurin.page import figures
from maclaurin.page.figures import Line
from maclaurin.page.html import Chart


def chart(experiment: str, plot: Plot | Matrix, setting: str) -> Chart:
    """The settings and the seed are part of the caption."""
    figure = _matrix(plot) if isinstance(plot, Matrix) else _curves(plot)
    return Chart(f"{experiment}-{plot.key}", figure, f"{plot.caption} ({setting})")


def _curves(plot: Plot) -> go.Figure:
    names = list(dict.fromkeys(curve.name for curve in plot.curves))
    style = figures.styles([(name, name) for name in names])
    lines = [
        Line(curve.name, style[curve.name], curve.x, curve.y, curve.low, curve.high, faint=curve.dashed)
        for curve in plot.curves
    ]
    return figures.curves(lines, plot.x_title, plot.y_title, log_x=plot.log_x, log_y=plot.log_y)


def _matrix(plot: Matrix) -> go.Figure:
    return figures.matrix(plot.values, plot.x_title, plot.y_title)
