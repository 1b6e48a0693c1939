"""One self-contained HTML page from sections of figures, tables and code. It loads nothing from outside, and must not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from maclaurin.common.files import write_text

# the browser itself refuses any request that a script might make
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Chart:
    """A figure; `key` names it in the page and as a file."""

    key: str
    figure: go.Figure
    caption: str

    def html(self) -> str:
        data = self.figure.to_json().replace("<", "\\u003c")  # nothing in it can end the script element
        return (
            f'<figure class="chart"><div id="{escape(self.key)}" class="plot" role="img" '
            f'aria-label="{escape(self.caption)}"></div>'
            f'<script type="application/json" data-for="{escape(self.key)}">{data}</script>'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the number it is sorted by if it stands for one."""

    text: str
    value: float | None = None
    note: str = ""  # smaller, below it
    swatch: str = ""  # a colour before it
    code: bool = False  # to copy; it may break anywhere

    def html(self, numeric: bool) -> str:
        value = "" if self.value is None or not math.isfinite(self.value) else f' data-value="{self.value!r}"'
        swatch = f'<span class="swatch" style="background:{escape(self.swatch)}"></span>' if self.swatch else ""
        note = f"<small>{escape(self.note)}</small>" if self.note else ""
        text = f"<code>{escape(self.text)}</code>" if self.code else escape(self.text)
        return f"<td{' class=number' if numeric else ''}{value}>{swatch}{text}{note}</td>"


@dataclass(frozen=True)
class Column:
    title: str
    numeric: bool = True


@dataclass(frozen=True)
class DataTable:
    """Sorted by a click on a column's header; numbers as numbers, missing ones last."""

    key: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    def html(self) -> str:
        head = "".join(
            f'<th scope="col" aria-sort="none"{" class=number" if column.numeric else ""}>'
            f'<button type="button">{escape(column.title)}</button></th>'
            for column in self.columns
        )
        body = "".join(
            "<tr>" + "".join(cell.html(column.numeric) for cell, column in zip(row, self.columns, strict=True)) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption><span>{escape(self.caption)}</span></caption>" if self.caption else ""
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.caption or self.key)}">'
            f'<table id="{escape(self.key)}" class="sortable">{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


@dataclass(frozen=True)
class Code:
    """Text to copy, as it is."""

    title: str
    text: str

    def html(self) -> str:
        return f"<h3>{escape(self.title)}</h3><pre>{escape(self.text)}</pre>"


@dataclass(frozen=True)
class Section:
    """intro: paragraphs, separated by line breaks."""

    title: str
    intro: str
    parts: Sequence[Chart | DataTable | Code]

    def html(self) -> str:
        charts = "".join(part.html() for part in self.parts if isinstance(part, Chart))
        others = "".join(part.html() for part in self.parts if not isinstance(part, Chart))
        intro = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in self.intro.splitlines() if paragraph)
        grid = f'<div class="charts">{charts}</div>' if charts else ""
        return f"<section><h2>{escape(self.title)}</h2>{intro}{grid}{others}</section>"


@dataclass(frozen=True)
class Page:
    title: str
    headline: str
    lead: Sequence[str]
    sections: Sequence[Section]

    def charts(self) -> list[Chart]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]

    def html(self) -> str:
        style, script = ((files("maclaurin.page") / name).read_text() for name in ("page.css", "page.js"))
        lead = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.lead)
        body = "".join(section.html() for section in self.sections)
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            # without an icon of its own a browser would ask the server for one
            '<link rel="icon" href="data:,">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head><body>"
            f'<header><p class="title">{escape(self.title)}</p><h1>{escape(self.headline)}</h1>{lead}</header>'
            f"<main>{body}</main><script>{get_plotlyjs()}</script><script>{script}</script></body></html>\n"
        )

    def write(self, path: Path) -> None:
        write_text(path, self.html())
