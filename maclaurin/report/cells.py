"""Cells of tables about runs."""

from __future__ import annotations

from maclaurin.common.sizes import size_text
from maclaurin.page.html import Cell


def number(value: float | None, text: str, missing: str = "–") -> Cell:
    return Cell(missing) if value is None else Cell(text.format(value), float(value))


def size(value: int | None) -> Cell:
    return Cell("–") if value is None else Cell(size_text(value), float(value))


def load_note(average: float | None) -> str:
    return "" if average is None else f"load {average:.1f}"
