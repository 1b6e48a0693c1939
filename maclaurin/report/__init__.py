"""Runs and suites as one self-contained HTML page with figures to read, toggle and export."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maclaurin.report.page import Page

__all__ = ["build", "missing"]


def missing() -> str:
    """What must be installed before a page can be made, as a sentence; empty if nothing."""
    absent = [name for name in ("plotly", "transformers") if find_spec(name) is None]
    return f"a report needs {' and '.join(absent)}: pip install 'maclaurin[report]'" if absent else ""


def build(folders: Sequence[Path], *, measure: bool = True, command: str = "") -> Page:
    """The page of all runs and suites in the folders and below. `measure` times a layer of each mixer, up to 20 seconds.

    command: what was typed to get it, shown in the page.
    """
    if sentence := missing():
        raise ValueError(sentence)
    from maclaurin.report import sections, suites
    from maclaurin.report.headline import headline, lead
    from maclaurin.report.page import Page
    from maclaurin.report.runs import collect, grouped

    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is no folder here")
    runs, evaluated = collect(folders), suites.collect(folders)
    if not runs and not evaluated:
        places = ", ".join(repr(str(folder)) for folder in folders)
        raise ValueError(
            f"there is no run in {places}: a run is a folder with recipe.json and log.jsonl, a suite one with results.json"
        )
    groups = grouped(runs)
    parts = []
    if groups:
        parts = [
            sections.results(groups),
            sections.curves(groups),
            sections.costs(groups, measure),
            sections.memory(groups),
        ]
    parts += suites.sections(evaluated)
    if runs:
        parts.append(sections.all_runs(runs))
    if evaluated:
        parts.append(suites.making(evaluated))
    parts.append(sections.making(folders, groups, runs, command))
    title = "Maclaurin: training runs compared" if runs else "Maclaurin: what mixers can learn"
    return Page(title, headline(groups) if runs else suites.headline_of(evaluated), lead(groups, runs), parts)
