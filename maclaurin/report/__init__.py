"""Runs, suites and the lab as one self-contained HTML page with figures to read, toggle and export."""

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
    """The page of all runs, suites and results of the lab in the folders and below.

    measure: time a layer of each mixer, up to 20 seconds. command: what was typed to get it, shown in the page.
    """
    if sentence := missing():
        raise ValueError(sentence)
    from maclaurin.lab import page as lab
    from maclaurin.lab.run import found_in
    from maclaurin.report import sections, suites
    from maclaurin.report.headline import headline, lead
    from maclaurin.report.page import Page
    from maclaurin.report.runs import collect, grouped

    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is no folder here")
    runs, evaluated = collect(folders), suites.collect(folders)
    claims = [result for folder in folders for result in found_in(folder)]
    if not runs and not evaluated and not claims:
        places = ", ".join(repr(str(folder)) for folder in folders)
        raise ValueError(
            f"there is no run in {places}: a run is a folder with recipe.json and log.jsonl, a suite one with results.json, "
            "the lab one with *.lab.json"
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
    if claims:
        parts += lab.sections(claims)
    if runs:
        parts.append(sections.all_runs(runs))
    if evaluated:
        parts.append(suites.making(evaluated))
    parts.append(sections.making(folders, groups, runs, command))
    if runs:
        return Page("Maclaurin: training runs compared", headline(groups), lead(groups, runs), parts)
    if evaluated:
        return Page("Maclaurin: what mixers can learn", suites.headline_of(evaluated), lead(groups, runs), parts)
    return Page("Maclaurin: the lab", lab.headline(claims), [lab.LEAD], parts)
