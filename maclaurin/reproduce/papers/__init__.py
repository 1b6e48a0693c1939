"""The papers, one file each: their tables as plain data."""

from __future__ import annotations

from importlib import import_module

from maclaurin.common.choices import near_miss
from maclaurin.reproduce.table import Paper, Table

# name in the shell -> its module
MODULES = {
    name: f"{__name__}.{name.replace('-', '_')}"
    for name in (
        "paper-1",
        "paper-2",
        "dsf",
        "metala",
        "inline",
        "luna",
        "swax",
        "selective-rope",
        "separation",
        "long-prompt",
    )
}


def paper_of(name: str) -> Paper:
    if name not in MODULES:
        raise ValueError(f"there is no paper {name!r}{near_miss(name, MODULES)}; there are:\n{listed()}")
    paper: Paper = import_module(MODULES[name]).PAPER
    return paper


def tables_of(paper: str, table: str | None) -> list[Table]:
    """The table of that name, or all of the paper."""
    tables = paper_of(paper).tables
    if table is None:
        return list(tables.values())
    if table not in tables:
        lines = "\n".join(f"  {name}: {one.shows}" for name, one in tables.items())
        raise ValueError(f"{paper} has no table {table!r}{near_miss(table, tables)}; it has:\n{lines}")
    return [tables[table]]


def listed() -> str:
    """A line per paper."""
    return "\n".join(f"  {name}: {paper_of(name).title}" for name in MODULES)
