"""`maclaurin cache`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from maclaurin.commands.output import Json, print_json, screen

if TYPE_CHECKING:
    from maclaurin.data.cache import CacheEntry

UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries that no process uses.")] = False,
    limit: Annotated[
        str | None,
        typer.Option(help="Remove the entries unused for longest until all take at most this, such as 500MB or 20GB."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the tokenised corpora on this disk, with their size and age; --clear and --limit remove them."""
    from maclaurin.common.sizes import size_bytes, size_text
    from maclaurin.data.cache import entries, shrink
    from maclaurin.data.tokens import default_cache

    if clear and limit is not None:
        raise ValueError("clear and limit exclude each other: give one of them")
    folder = default_cache()
    most = 0 if clear else size_bytes("limit", limit) if limit is not None else None
    removed = [] if most is None else shrink(folder, most)
    left = entries(folder)
    if as_json:
        print_json({"folder": str(folder), "removed": [_facts(entry) for entry in removed], "left": [*map(_facts, left)]})
        return
    if most is not None:
        print(f"removed {len(removed)} of {len(removed) + len(left)}, {size_text(sum(entry.nbytes for entry in removed))}")
        if sum(entry.nbytes for entry in left) > most:
            print("the others are in use")
    if left:
        screen().print(_table(left))
    print(f"{size_text(sum(entry.nbytes for entry in left))} in {folder}")


def _facts(entry: CacheEntry) -> dict[str, object]:
    return {
        "folder": entry.folder.name,
        "corpus": entry.corpus,
        "split": entry.split,
        "nbytes": entry.nbytes,
        "unused_seconds": round(time.time() - entry.used),
        "complete": entry.complete,
    }


def _table(entries: list[CacheEntry]) -> Table:
    from maclaurin.common.sizes import size_text

    table = Table()
    for column in ("corpus", "split", "of it"):
        table.add_column(column)
    for column in ("size", "last used"):
        table.add_column(column, justify="right")
    for entry in reversed(entries):
        part = "all" if entry.complete else "a part"
        table.add_row(entry.corpus, entry.split, part, size_text(entry.nbytes), f"{_age(time.time() - entry.used)} ago")
    return table


def _age(seconds: float) -> str:
    """5400 -> "1.5 h"."""
    unit = max((unit for unit in UNITS if UNITS[unit] <= seconds), key=UNITS.__getitem__, default="s")
    return f"{seconds / UNITS[unit]:,.3g} {unit}"
