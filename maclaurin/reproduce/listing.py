"""The tables in words: what `maclaurin reproduce --list` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maclaurin.common.records import Json
from maclaurin.reproduce.papers import paper_of
from maclaurin.reproduce.table import Table


def lines(paper: str, tables: Sequence[Table]) -> Iterator[str]:
    yield f"{paper}: {paper_of(paper).title}"
    for table in tables:
        yield f"  {table.name} ({table.where}): {table.shows}"
        yield f"    {command(paper, table)}    budgets: {', '.join(table.budgets())}"
        if table.lab:
            yield f"    computed by the lab: {next(iter(table.lab.values()))[0]}"
        if table.labels():
            yield "    " + "; ".join(_row(table, label) for label in table.labels())
        for label, why in table.missing.items():
            yield f"    not here: {label}: {why}"
    yield ""


def command(paper: str, table: Table) -> str:
    first = table.budgets()[0]
    return f"maclaurin reproduce {paper} {table.name}" + (f" --budget {first}" if first != "minutes" else "")


def _row(table: Table, label: str) -> str:
    text = table.text_of(label)
    return f"{label} ({text})" if text else label


def described(paper: str, table: Table) -> Json:
    return {
        "paper": paper,
        "table": table.name,
        "where": table.where,
        "shows": table.shows,
        "command": command(paper, table),
        "budgets": table.budgets(),
        "rows": table.labels(),
        "controls": list(table.controls),
        "published": dict(table.published),
        "in_words": table.in_words,
        "missing": dict(table.missing),
        "lab": next(iter(table.lab.values()))[0] if table.lab else None,
    }
