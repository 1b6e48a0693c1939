"""Runs, suites, conversions and the lab as one self-contained HTML page with interactive figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maclaurin.page import missing

if TYPE_CHECKING:
    from maclaurin.page.html import Page, Section
    from maclaurin.training.statistics import Standing

__all__ = ["build", "standings"]

Say = Callable[[str], None]


def to_stderr(sentence: str) -> None:
    print(f"maclaurin: {sentence}", file=sys.stderr)


def build(folders: Sequence[Path], *, measure: bool = True, command: str = "", say: Say = to_stderr) -> Page:
    """The page of all runs, suites and results of the lab in the folders and below.

    measure: time a layer of each mixer, up to 20 seconds. command: the command line, shown in the page. say: called with a
    sentence for each file that cannot be used; the page names it too, and shows the rest.
    """
    if sentence := missing():
        raise ValueError(sentence)
    from maclaurin.lab import page as lab
    from maclaurin.lab.run import found_in
    from maclaurin.page.html import Page
    from maclaurin.report import sections, suites
    from maclaurin.report.against_state import against_state
    from maclaurin.report.headline import headline, lead
    from maclaurin.report.runs import collect, grouped
    from maclaurin.report.sections import shown_alone

    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is no folder here")
    broken: list[str] = []
    runs, evaluated, converted = shown_alone(collect(folders)), suites.collect(folders), _conversions(folders, broken.append)
    claims = [result for folder in folders for result in found_in(folder, broken.append)]
    damaged = [(run.folder, run.problem) for run in runs] + [(suite.folder, suite.problem) for suite in evaluated]
    for sentence in (*broken, *(f"{folder}: {problem}" for folder, problem in damaged if problem)):
        say(sentence)
    if broken and not (runs or evaluated or converted or claims):
        raise ValueError(f"there is nothing to show: {broken[0]}")
    if not runs and not evaluated and not converted and not claims:
        places = ", ".join(repr(str(folder)) for folder in folders)
        raise ValueError(
            f"there is no run in {places}: a run is a folder with recipe.json and log.jsonl, a suite one with results.json, "
            "a conversion one with conversion.json, the lab one with *.lab.json"
        )
    groups = grouped(runs)
    parts = [part for part, _ in converted]
    if groups:
        scatter = against_state(groups)
        parts += [
            sections.results(groups),
            *([scatter] if scatter else []),
            sections.curves(groups),
            sections.costs(groups, measure),
            sections.state_sizes(groups),
        ]
    parts += suites.sections(evaluated)
    if claims:
        parts += lab.sections(claims)
    if runs:
        parts.append(sections.all_runs(runs))
    if evaluated:
        parts.append(suites.making(evaluated))
    if broken:
        parts.append(sections.unreadable(broken))
    parts.append(sections.making(folders, groups, runs, command))
    if runs:
        return Page("Maclaurin: training runs compared", headline(groups), lead(groups, runs), parts)
    if evaluated:
        return Page("Maclaurin: what mixers can learn", suites.headline_of(evaluated), lead(groups, runs), parts)
    if converted:
        return Page("Maclaurin: models made linear", converted[0][1], [], parts)
    return Page("Maclaurin: the lab", lab.headline(claims), [lab.LEAD], parts)


def standings(folders: Sequence[Path]) -> list[Standing]:
    """The rows of the page's table: the runs in the folders and below, best first."""
    from maclaurin.report.runs import collect, grouped
    from maclaurin.report.sections import shown_alone

    return [group.row for group in grouped(shown_alone(collect(folders)))]


def _conversions(folders: Sequence[Path], broken: Say) -> list[tuple[Section, str]]:
    """A section about the conversions in the folders, and its headline; empty if there are none."""
    if not any(next(folder.rglob("conversion.json"), None) for folder in folders):
        return []
    from maclaurin.convert.page import conversions, headline, section

    results = conversions(folders, broken)
    return [(section(results), headline(results))] if results else []
