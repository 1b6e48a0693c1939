"""Plotly figures from plain data. Colours follow the light or dark page, so a figure sets only those of its lines."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from maclaurin.common.sizes import size_text
from maclaurin.page import overlaps

# Paul Tol's "bright" scheme, which colour-blind people can tell apart, on white and on black; then two more
PALETTE = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#888888", "#E08214", "#8878C8")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "triangle-down", "cross", "hexagon")
# the same in every report
ORDER = ("softmax", "2mamba", "mamba2s", "mamba2", "softmax-conv", "2mamba-e", "linear", "fox", "gated-delta")
KNOWN = {name: slot for slot, name in enumerate(ORDER)}
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_MARKERS = 60  # on a line; more would run together
MOST_OVER = 3  # lines that a line is made wider for


@dataclass(frozen=True)
class Style:
    color: str
    symbol: str
    dash: str = "solid"


@dataclass(frozen=True)
class Line:
    """One line and, over several seeds, the band between the lowest and the highest."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    tokens: Sequence[float] = ()  # the other horizontal axis of losses
    faint: bool = False
    over: int = 0  # how many lines lie on it

    @property
    def points(self) -> dict[float, float]:
        return dict(zip(self.x, self.y, strict=True))


@dataclass(frozen=True)
class Mark:
    """A point worth a label."""

    style: Style
    x: float
    y: float
    text: str
    name: str


def styles(pairs: Sequence[tuple[str, str]]) -> dict[str, Style]:
    """A style by name from (name, mixer): a colour per mixer, a dash for each further group of the same mixer."""
    mixers = list(dict.fromkeys(mixer for _, mixer in pairs))
    free = [slot for slot in range(len(PALETTE)) if slot not in {KNOWN.get(mixer) for mixer in mixers}]
    others = [mixer for mixer in mixers if mixer not in KNOWN]
    # with more mixers than colours, mixers of one colour differ by dash
    slots = {mixer: (KNOWN[mixer], 0) for mixer in mixers if mixer in KNOWN}
    for index, mixer in enumerate(others):
        pool = free or list(range(len(PALETTE)))
        slots[mixer] = (pool[index % len(pool)], index // len(pool) + (not free))
    found, seen = {}, dict.fromkeys(mixers, 0)
    for name, mixer in pairs:
        slot, dash = slots[mixer]
        found[name] = Style(PALETTE[slot], SYMBOLS[slot], DASHES[(dash + seen[mixer]) % len(DASHES)])
        seen[mixer] += 1
    return found


def apart(lines: Sequence[Line], *, log: bool = False) -> list[Line]:
    """The lines, told apart where one would hide another: the lower ones of a stack are wider, the upper ones dashed."""
    found = []
    for line, (below, above) in zip(lines, overlaps.depths([line.points for line in lines], log=log), strict=True):
        dash = DASHES[below % len(DASHES)] if below and line.style.dash == "solid" else line.style.dash
        found.append(replace(line, style=replace(line.style, dash=dash), over=min(above, MOST_OVER)))
    return found


def hidden(lines: Sequence[Line], *, log: bool = False) -> str:
    """A sentence about the lines that lie on each other, if any do."""
    return overlaps.sentence({line.name: line.points for line in lines if not line.faint}, log=log)


def losses(lines: Sequence[Line], title: str) -> go.Figure:
    """Against steps, or against tokens: `layout.meta` tells the page which column of customdata is which."""
    figure = _figure(title)
    for line in apart(lines):
        places = [list(pair) for pair in zip(line.x, line.tokens, strict=True)]
        if line.low:
            figure.add_scatter(
                x=[*line.x, *reversed(line.x)],
                y=[*line.high, *reversed(line.low)],
                customdata=[*places, *reversed(places)],
                mode="lines",
                fill="toself",
                fillcolor=_translucent(line.style.color),
                line={"width": 0},
                legendgroup=line.name,
                showlegend=False,
                hoverinfo="skip",
            )
        between = [f" ({low:.4f} to {high:.4f})" for low, high in zip(line.low, line.high, strict=True)]
        figure.add_scatter(
            **_line(line),
            customdata=places,
            text=between or [""] * len(line.x),
            hovertemplate="%{y:.4f}%{text}",
        )
    figure.update_layout(meta={"axes": [["step", "step"], ["tokens", "tokens seen"]]})
    figure.update_xaxes(title="step", rangemode="tozero", exponentformat="SI")
    return figure


def against_length(lines: Sequence[Line], title: str, unit: str = "") -> go.Figure:
    """Both axes logarithmic; `unit` follows the numbers."""
    figure = _figure(title)
    for line in apart(lines, log=True):
        between = [f" ({_si(low)}{unit} to {_si(high)}{unit})" for low, high in zip(line.low, line.high, strict=True)]
        figure.add_scatter(
            **_line(line),
            error_y=_interval(line),
            text=between or [""] * len(line.x),
            hovertemplate=f"%{{y:.3~s}}{unit}%{{text}}",
        )
    _length_axis(figure, [x for line in lines for x in line.x])
    ticks = _ticks([y for line in lines for y in line.y])
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{_si(tick)}{unit}" for tick in ticks])
    return figure


def state_sizes(lines: Sequence[Line], marks: Sequence[Mark], title: str) -> go.Figure:
    """Bytes against length, with the crossovers marked."""
    figure = _figure(title)
    for line in apart(lines, log=True):
        figure.add_scatter(**_line(line), text=[size_text(round(y)) for y in line.y], hovertemplate="%{text}")
    for mark in marks:
        figure.add_scatter(
            x=[mark.x],
            y=[mark.y],
            mode="markers+text",
            marker={"symbol": "circle-open", "size": 15, "color": mark.style.color, "line": {"width": 3}},
            text=[html.escape(mark.text, quote=False)],
            textposition="bottom right",  # where a line that has stopped growing leaves room
            name=html.escape(f"{mark.name}, crossover", quote=False),
            legendgroup=mark.name,
            showlegend=False,
            hovertemplate="%{x:,} tokens",
        )
    _length_axis(figure, [x for line in lines for x in line.x])
    inside = _byte_ticks([y for line in lines for y in line.y])
    figure.update_yaxes(type="log", tickvals=inside, ticktext=[size_text(int(tick)) for tick in inside])
    return figure


def against_bytes(lines: Sequence[Line], title: str, x_title: str, number: str) -> go.Figure:
    """One point per line, with its interval, against a logarithmic axis of bytes; `number` formats its value."""
    figure = _figure(title)
    for line in lines:
        size, value = size_text(round(line.x[0])), number.format(line.y[0])
        ends = f" ({number.format(line.low[0])} to {number.format(line.high[0])})" if line.low else ""
        figure.add_scatter(
            **_line(line) | {"mode": "markers", "marker": _dot(line.style)},
            error_y=_interval(line),
            hovertemplate=f"{value}{ends}, {size}",
        )
    ticks = _byte_ticks([x for line in lines for x in line.x])
    figure.update_xaxes(title=x_title, type="log", tickvals=ticks, ticktext=[size_text(int(tick)) for tick in ticks])
    figure.update_layout(hovermode="closest")
    return figure


def accuracy(lines: Sequence[Line], x_title: str, last_trained: float = math.inf) -> go.Figure:
    """Accuracies from 0 to 1 with their intervals, against a logarithmic axis, shaded beyond the training range."""
    figure = _figure("accuracy")
    beyond = [x for line in lines for x in line.x if x > last_trained]
    if beyond:
        middle = math.sqrt(last_trained * min(beyond))
        figure.add_vrect(middle, max(beyond) * 1.1, fillcolor="rgba(128,128,128,0.14)", line_width=0, layer="below")
    for line in apart(lines):
        figure.add_scatter(**_line(line), error_y=_interval(line), hovertemplate="%{y:.3f}")
    ticks = sorted({x for line in lines for x in line.x})
    figure.update_xaxes(title=x_title, type="log", tickvals=ticks, ticktext=[length_text(tick) for tick in ticks])
    figure.update_yaxes(range=[-0.03, 1.03])
    return figure


def spread(lines: Sequence[Line], by_seed: Sequence[Sequence[float]], x_title: str) -> go.Figure:
    """One value per row, which is a Line of one point, with its interval and, smaller, the values of its seeds."""
    figure = _figure("")
    for line, values in zip(lines, by_seed, strict=True):
        row = html.escape(line.name, quote=False)
        color = line.style.color
        figure.add_scatter(
            x=list(values),
            y=[row] * len(values),
            mode="markers",
            marker={"color": color, "size": 9, "opacity": 0.35},
            hovertemplate="%{x:.3f}<extra>one seed</extra>",
        )
        error = {"array": [line.high[0] - line.y[0]], "arrayminus": [line.y[0] - line.low[0]], "symmetric": False}
        figure.add_scatter(
            x=[line.y[0]],
            y=[row],
            mode="markers",
            marker={"color": color, "size": 8, "symbol": line.style.symbol},
            error_x={"type": "data", "thickness": 1.5, "width": 4, "color": color, **error},
            hovertemplate=f"%{{x:.3f}} ({line.low[0]:.3f} to {line.high[0]:.3f})<extra>{row}</extra>",
        )
    figure.update_xaxes(title=x_title, showgrid=True)
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_layout(showlegend=False, hovermode="closest")
    return figure


def heat_map(
    x: Sequence[float],
    y: Sequence[float],
    values: Sequence[Sequence[float]],
    x_title: str,
    y_title: str,
    last_trained: float,
) -> go.Figure:
    """Shares from 0 to 1 (a row for each of y, from the top down) with a line behind the last column trained on."""
    figure = _figure(y_title)
    figure.add_heatmap(
        x=[length_text(value) for value in x],
        y=[f"{value:g}" for value in y],
        z=[list(row) for row in values],
        zmin=0,
        zmax=1,
        colorscale="Cividis",
        texttemplate="%{z:.2f}",
        hovertemplate=f"{x_title} %{{x}}, {y_title} %{{y}}: %{{z:.3f}}<extra></extra>",
    )
    behind = sum(value <= last_trained for value in x) - 0.5
    if 0 < behind < len(x) - 0.5:
        figure.add_vline(behind, line={"color": "#EE6677", "width": 3})
    figure.update_xaxes(title=x_title, type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_layout(hovermode="closest")
    return figure


def curves(lines: Sequence[Line], x_title: str, y_title: str, *, log_x: bool = False, log_y: bool = False) -> go.Figure:
    """Any lines with their intervals; faint lines are predictions, of the measurement of the same name if there is one."""
    figure = _figure(y_title)
    measured = {line.name for line in lines if not line.faint}
    solid = apart([line for line in lines if not line.faint], log=log_y)
    for line in (*solid, *(line for line in lines if line.faint)):
        prediction = line.faint and line.name in measured
        figure.add_scatter(
            **_line(line) | {"mode": "lines" if prediction or len(line.x) > MOST_MARKERS else "lines+markers"},
            error_y=_interval(line),
            hovertemplate="%{y:.4g}",
            showlegend=not prediction,
        )
    figure.update_xaxes(title=x_title, type="log" if log_x else "linear", exponentformat="power")
    places = {x for line in lines for x in line.x}
    if not log_x and len(places) <= 12 and all(x == round(x) for x in places):
        figure.update_xaxes(tickvals=sorted(places))  # layers, orders: nothing is between them
    figure.update_yaxes(type="log" if log_y else "linear", exponentformat="power")
    return figure


def matrix(values: Sequence[Sequence[float]], x_title: str, y_title: str) -> go.Figure:
    """A heat map of any numbers, the first row on top."""
    figure = _figure(y_title)
    figure.add_heatmap(
        z=[list(row) for row in values], colorscale="Cividis", hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>"
    )
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(hovermode="closest")
    return figure


def length_text(length: float) -> str:
    """4096 -> "4k"."""
    for unit, name in ((2**20, "M"), (2**10, "k")):
        if length >= unit and length % unit == 0:
            return f"{int(length // unit)}{name}"
    return f"{int(length)}"


def _figure(y_title: str) -> go.Figure:
    axis = {"showline": True, "mirror": False, "ticks": "outside", "zeroline": False, "automargin": True}
    return go.Figure(
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "margin": {"l": 10, "r": 16, "t": 16, "b": 10},
            "hovermode": "x unified",
            "hoverlabel": {"namelength": -1},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "rgba(128,128,128,0.55)", "activecolor": "rgb(128,128,128)"},
            # below the plot and its axis title, at any width
            "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
            "xaxis": axis,
            "yaxis": axis | {"title": {"text": y_title, "standoff": 8}},
        }
    )


def _line(line: Line) -> dict[str, object]:
    style = line.style
    return {
        "x": list(line.x),
        "y": list(line.y),
        "name": html.escape(line.name, quote=False),  # Plotly reads names as markup
        "legendgroup": line.name,
        "mode": "lines+markers",
        "line": {
            "color": style.color,
            "width": 1.2 if line.faint else 2.2 + 3.5 * line.over,
            "dash": "dot" if line.faint else style.dash,
        },
        "marker": {"symbol": style.symbol, "size": 4 if line.faint else 6 + 4 * line.over, "color": style.color},
        "opacity": 0.7 if line.faint else 0.55 if line.over else 1,
    }


def _dot(style: Style) -> dict[str, object]:
    return {"symbol": style.symbol, "size": 11, "color": style.color}


def _interval(line: Line) -> dict[str, object] | None:
    if not line.low:
        return None
    above = [high - y for high, y in zip(line.high, line.y, strict=True)]
    below = [y - low for low, y in zip(line.low, line.y, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3}


def _length_axis(figure: go.Figure, lengths: Sequence[float]) -> None:
    ticks = sorted(set(lengths))
    ticks = ticks[:: 2 if len(ticks) > 7 else 1]
    figure.update_xaxes(
        title="sequence length, tokens", type="log", tickvals=ticks, ticktext=[length_text(tick) for tick in ticks]
    )


def _byte_ticks(values: Sequence[float]) -> list[float]:
    """Powers of 4, or of 16 where those would be too many."""
    ticks = [1024.0 * 4**n for n in range(-5, 20)]
    inside = [tick for tick in ticks if min(values) / 4 <= tick <= max(values) * 4] if values else []
    return inside[:: 2 if len(inside) > 8 else 1]


def _ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, … around the values; the powers of ten alone where those would be too many."""
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if min(values) / 2 <= tick <= max(values) * 2]


def _si(value: float) -> str:
    """2e-05 -> "20 µ", 500000 -> "500k"."""
    for power, prefix in ((9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, " m"), (-6, " µ"), (-9, " n")):
        if value >= 0.999 * 10**power:
            return f"{value / 10**power:.3g}{prefix}"
    return f"{value:.3g}"


def _translucent(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
