"""The suites of `maclaurin suite` in a set of folders, as parts of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maclaurin.common.files import naming, read_json
from maclaurin.evals.page import headline, lead, searches, section, settings
from maclaurin.evals.results import ResultTable, SuiteResult
from maclaurin.page.html import Code, Section


@dataclass(frozen=True)
class SavedSuite:
    """A folder of `maclaurin suite`: its results, or what is wrong with them."""

    folder: Path
    name: str = ""
    command: str = ""
    tables: Sequence[ResultTable] = ()
    problem: str = ""


def collect(folders: Sequence[Path]) -> list[SavedSuite]:
    """Every suite in the folders and below. A results.json of something else is ignored."""
    paths = {path.resolve(): path for folder in folders for path in sorted(folder.rglob("results.json"))}
    return [suite for path in paths.values() if (suite := _read(path)) is not None]


def headline_of(suites: Sequence[SavedSuite]) -> str:
    """What the first table with a result says."""
    tables = [table for suite in suites for table in suite.tables]
    done = [table for table in tables if table.measured()]
    return headline(done[0]) if done else "No cell has finished yet"


def sections(suites: Sequence[SavedSuite]) -> list[Section]:
    """One per table, one for all rungs of a search, and one for the folders that cannot be read."""
    seen: Counter[str] = Counter()
    parts = []
    for suite in suites:
        made = searches(suite.tables, _numbered("search", seen))
        made += [section(table, _numbered(table.experiment, seen)) for table in suite.tables]
        note = f"{lead(suite.tables)} From {suite.folder}." if made else ""
        parts += [Section(f"{suite.name}: {one.title}", note, one.parts) for one in made]
    broken = [f"{suite.folder}: {suite.problem}" for suite in suites if suite.problem]
    if broken:
        parts.append(Section("Suites that cannot be read", "", [Code("Folders", "\n".join(broken))]))
    return parts


def _numbered(name: str, seen: Counter[str]) -> str:
    """Two folders may have the same one."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def making(suites: Sequence[SavedSuite]) -> Section:
    commands = Code("Commands", "\n".join(suite.command for suite in suites if suite.command))
    return Section("How the suites were made", "", [commands, *(settings(t) for suite in suites for t in suite.tables)])


def _read(path: Path) -> SavedSuite | None:
    try:
        with naming("results.json"):
            results = read_json(path, object)
    except ValueError as error:
        return SavedSuite(path.parent, problem=str(error))
    if not (isinstance(results, dict) and isinstance(results.get("suite"), str) and isinstance(results.get("tables"), list)):
        return None
    try:
        with naming("results.json"):
            found = SuiteResult.from_json({"command": ""} | results)
            suite = SavedSuite(path.parent, found.suite, found.command, found.tables)
            for part in (*sections([suite]), making([suite])):
                part.html()
            headline_of([suite])
    except ValueError as error:
        return SavedSuite(path.parent, problem=f"{error}: it has other fields than this version writes")
    return suite
