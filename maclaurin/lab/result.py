"""What an experiment of the lab returns: plain data that prints itself, draws itself and is kept as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from maclaurin.common.files import naming
from maclaurin.lab.claims import Claim

if TYPE_CHECKING:
    from maclaurin.page.html import Chart

KINDS = ("claims", "grids", "plots")  # of what a part consists of
WORDS = {True: "held", False: "NOT held", None: "does not apply"}


@dataclass(frozen=True)
class Curve:
    """low, high: its interval at each x, if it has one. dashed: a prediction or a published line, not a measurement."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False

    @classmethod
    def of(cls, name: str, points: Mapping[float, float] | Mapping[int, float], *, dashed: bool = False) -> Curve:
        """Through points, x -> y."""
        return cls(name, list(points), list(points.values()), dashed=dashed)


@dataclass(frozen=True)
class Plot:
    """Curves over one pair of axes. key: its name in the page and as a file."""

    key: str
    caption: str
    x_title: str
    y_title: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Matrix:
    """A heat map: values[row][column], the first row on top."""

    key: str
    caption: str
    x_title: str
    y_title: str
    values: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Grid:
    """A table of figures; cells are printed as they are, floats with four digits."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone."""
        return [all(isinstance(row[index], (int, float)) for row in self.rows) for index in range(len(self.columns))]


@dataclass(frozen=True)
class Part:
    """A piece of an experiment."""

    claims: Sequence[Claim]
    grids: Sequence[Grid] = ()
    plots: Sequence[Plot | Matrix] = ()


@dataclass(frozen=True)
class Result:
    """settings: all that decides the numbers, the seed among them. notes: the limits of what was shown, a sentence each."""

    name: str
    title: str
    settings: dict[str, Any]
    claims: Sequence[Claim]
    grids: Sequence[Grid] = ()
    plots: Sequence[Plot | Matrix] = ()
    notes: Sequence[str] = ()
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, name: str, title: str, settings: dict[str, Any], parts: Sequence[Part], notes: Sequence[str]) -> Result:
        """The claims, tables and figures of its parts, one part after the other."""
        claims, grids, plots = ([one for part in parts for one in getattr(part, kind)] for kind in KINDS)
        return cls(name, title, settings, claims, grids, plots, notes)

    @property
    def held(self) -> bool:
        """Every claim that applies."""
        return all(claim.held is not False for claim in self.claims)

    def table(self, width: int = 160) -> str:
        """The claims, the figures and the limits, as text."""
        console = Console(width=width, highlight=False)
        with console.capture() as capture:
            console.print(self.renderable())
        return capture.get()

    def renderable(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self.title, style="bold"), Text(self.setting_text(), style="dim")]
        parts += [_grid(grid) for grid in self.grids]
        parts.append(claims_table([(self.name, claim) for claim in self.claims]))
        parts += [Text(note) for note in self.notes]
        return Group(*parts)

    def plot(self) -> list[Chart]:
        """Its figures: `.figure` of each is Plotly's."""
        from maclaurin.lab.page import chart

        return [chart(self.name, plot, self.setting_text()) for plot in self.plots]

    def setting_text(self) -> str:
        return ", ".join(f"{name} {text_of(value)}" for name, value in self.settings.items())

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` wrote; of anything else, in whatever way it differs, a ValueError."""
        with naming("this result of the lab"):
            values = json.loads(text)
            plots = [
                Matrix(**plot)
                if "values" in plot
                else Plot(**plot | {"curves": [Curve(**curve) for curve in plot["curves"]]})
                for plot in values["plots"]
            ]
            claims = [Claim(**claim) for claim in values["claims"]]
            made = cls(**values | {"claims": claims, "grids": [Grid(**grid) for grid in values["grids"]], "plots": plots})
            if not (isinstance(made.name, str) and isinstance(made.title, str) and isinstance(made.seconds, int | float)):
                raise ValueError("name and title must be texts, seconds a number")
            made.table()  # all that is wrong with its parts shows here
        return made


def claims_table(claims: Sequence[tuple[str, Claim]], title: str = "Claims") -> Table:
    """(experiment, claim) as a table: claim, published or derived, measured, held or not."""
    table = Table(title=title, title_justify="left")
    for column in ("", "claim", "source", "expected", "measured", ""):
        table.add_column(column)
    for name, claim in claims:
        style = "bold red" if claim.held is False else ""
        table.add_row(
            # as Text: brackets are no markup
            *map(Text, (f"{name} {claim.key}", claim.text, claim.source, claim.expected, claim.measured)),
            Text(WORDS[claim.held], style=style),
        )
    return table


def _grid(grid: Grid) -> Table:
    table = Table(title=grid.title or None, title_justify="left")
    for column, numeric in zip(grid.columns, grid.numeric(), strict=True):
        table.add_column(column, justify="right" if numeric else "left")
    for row in grid.rows:
        table.add_row(*(Text(text_of(value)) for value in row))
    return table


def text_of(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(text_of, value))
    return str(value)
