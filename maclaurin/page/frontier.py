"""A value against bytes of state: a line per family of models, a label per size, and the frontier that none is beyond."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from maclaurin.common.pareto import pareto
from maclaurin.common.sizes import size_text
from maclaurin.page.figures import Line, _figure, _interval, _line


@dataclass(frozen=True)
class Family:
    """line: values against bytes. sizes: what each of its points is called."""

    line: Line
    sizes: Sequence[str]


def frontier(families: Sequence[Family], title: str, *, lower: bool) -> go.Figure:
    """lower: less is better."""
    figure = _figure(title)
    points = [point for family in families for point in zip(family.line.x, family.line.y, strict=True)]
    best = [points[place] for place in pareto(points, lower=lower)]
    figure.add_scatter(
        x=[x for x, _ in best],
        y=[y for _, y in best],
        name="frontier",
        mode="lines",
        line={"shape": "hv", "width": 9, "color": "rgba(136,136,136,0.35)"},
        hoverinfo="skip",
    )
    for family in families:
        line = family.line
        figure.add_scatter(
            **_line(line) | {"mode": "lines+markers+text"},
            error_y=_interval(line),
            text=[html.escape(size) for size in family.sizes],
            textposition="top center",
            textfont={"size": 10, "color": line.style.color},
            customdata=[size_text(round(x)) for x in line.x],
            hovertemplate=f"{html.escape(line.name)} %{{text}}: %{{y:.3f}}, %{{customdata}}<extra></extra>",
        )
    sizes = [x for x, _ in points]
    ticks = [1024.0 * 4**power for power in range(-5, 20)]
    inside = [tick for tick in ticks if min(sizes) / 4 < tick < max(sizes) * 4] if sizes else []
    figure.update_xaxes(
        title="state of one sequence", type="log", tickvals=inside, ticktext=[size_text(int(tick)) for tick in inside]
    )
    figure.update_layout(hovermode="closest")
    return figure
