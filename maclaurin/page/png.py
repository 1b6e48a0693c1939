"""Figures as PNG files: on white, without interactive parts, under their captions. Kaleido drives the browser."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from maclaurin.page.html import Chart

WIDTH, HEIGHT, SCALE = 900, 560, 2
CAPTION_SIZE, CAPTION_LINE, CAPTION_WIDTH = 12, 16, 125  # pixels, pixels, letters
AXIS = {"gridcolor": "#d9dee4", "linecolor": "#5a6370", "tickcolor": "#5a6370"}


def export(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """One file per figure, named by its key."""
    if find_spec("kaleido") is None:
        raise ValueError("PNG files need kaleido: pip install 'maclaurin[report]'")
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{chart.key}.png" for chart in charts]
    options = {"format": "png", "width": WIDTH, "height": HEIGHT, "scale": SCALE}
    figures = [
        {"fig": on_paper(chart).to_dict(), "path": path, "opts": options} for chart, path in zip(charts, paths, strict=True)
    ]
    try:
        # without this Kaleido would fetch MathJax from the network
        kaleido.write_fig_from_object_sync(figures, kopts={"mathjax": False})
    except ChromeNotFoundError as error:
        raise ValueError(
            "PNG files need Chromium or Chrome, and none was found: install it (Debian: apt-get install chromium), or save "
            "figures one by one with the camera button in the page"
        ) from error
    return paths


def on_paper(chart: Chart) -> go.Figure:
    """On white, under its caption."""
    copy = go.Figure(chart.figure)
    lines = [html.escape(line) for line in textwrap.wrap(chart.caption, CAPTION_WIDTH)]
    caption = {"text": "<br>".join(lines), "font": {"size": CAPTION_SIZE}, "automargin": False}
    copy.update_layout(
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"color": "#1c2024", "size": 15},
        xaxis=AXIS,
        yaxis=AXIS,
        title=caption | {"x": 0.01, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 12}},
        margin={"t": 12 + CAPTION_LINE * (len(lines) + 1)},
    )
    return copy
