"""Figures as PNG files for papers: on white, without what only a page can use. Kaleido drives the browser."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from maclaurin.report.page import Chart

WIDTH, HEIGHT, SCALE = 900, 560, 2
AXIS = {"gridcolor": "#d9dee4", "linecolor": "#5a6370", "tickcolor": "#5a6370"}


def export(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """One file a figure, named by its key."""
    if find_spec("kaleido") is None:
        raise ValueError("PNG files need kaleido: pip install 'maclaurin[report]'")
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{chart.key}.png" for chart in charts]
    options = {"format": "png", "width": WIDTH, "height": HEIGHT, "scale": SCALE}
    figures = [
        {"fig": _on_paper(chart.figure).to_dict(), "path": path, "opts": options}
        for chart, path in zip(charts, paths, strict=True)
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


def _on_paper(figure: go.Figure) -> go.Figure:
    copy = go.Figure(figure)
    copy.update_layout(
        paper_bgcolor="white", plot_bgcolor="white", font={"color": "#1c2024", "size": 15}, xaxis=AXIS, yaxis=AXIS
    )
    return copy
