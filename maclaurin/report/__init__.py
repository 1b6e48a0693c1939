"""Runs as one self-contained HTML page with figures to read, toggle and export."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maclaurin.report.page import Page, Section

__all__ = ["build", "missing"]


def missing() -> str:
    """What must be installed before a page can be made, as a sentence; empty if nothing."""
    absent = [name for name in ("plotly", "transformers") if find_spec(name) is None]
    return f"a report needs {' and '.join(absent)}: pip install 'maclaurin[report]'" if absent else ""


def build(folders: Sequence[Path], *, measure: bool = True, command: str = "") -> Page:
    """The page of all runs in the folders and below. `measure` times a layer of each mixer, up to 20 seconds.

    command: what was typed to get it, shown in the page.
    """
    if sentence := missing():
        raise ValueError(sentence)
    from maclaurin.report import sections
    from maclaurin.report.headline import headline, lead
    from maclaurin.report.page import Page
    from maclaurin.report.runs import collect, grouped

    converted = _conversions(folders)
    runs = collect(folders, needed=not converted)
    groups = grouped(runs)
    parts = [part for part, _ in converted]
    if groups:
        parts += [
            sections.results(groups),
            sections.curves(groups),
            sections.costs(groups, measure),
            sections.memory(groups),
        ]
    if not runs:
        return Page("Maclaurin: models made linear", converted[0][1], [], parts)
    parts += [sections.all_runs(runs), sections.making(folders, groups, runs, command)]
    return Page("Maclaurin: training runs compared", headline(groups), lead(groups, runs), parts)


def _conversions(folders: Sequence[Path]) -> list[tuple[Section, str]]:
    """A section about the conversions in the folders, and what it says in a sentence; none where there are none."""
    if not any(folder.is_dir() and next(folder.rglob("conversion.json"), None) for folder in folders):
        return []
    from maclaurin.convert.page import conversions, headline, section

    results = conversions(folders)
    return [(section(results), headline(results))] if results else []
