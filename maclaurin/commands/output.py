"""What commands have in common: the screen, JSON, the command line, the page at the end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and all else on standard error.")]


def screen() -> Console:
    """As wide as the terminal, or as the text if the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


@contextmanager
def talk(*, as_json: bool) -> Iterator[None]:
    """With JSON, standard output is for the result alone: whatever is printed within goes to standard error."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def typed() -> str:
    """The command of this process, without its share of the work: results do not depend on that."""
    return shlex.join(["maclaurin", *without(sys.argv[1:], "--shard")])


def without(words: Sequence[str], flag: str) -> list[str]:
    """The words of a command but for a flag and its value, in either spelling."""
    left, rest = [], list(words)
    while rest:
        name, equals, _ = rest[0].partition("=")
        if name.replace("_", "-") == flag:
            del rest[: 1 if equals else 2]
        else:
            left.append(rest.pop(0))
    return left


def comma_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def write_report(folder: Path, stream: TextIO) -> None:
    """The page about everything in a folder, and its path or why there is none."""
    from maclaurin.page import missing
    from maclaurin.report import build

    if sentence := missing():
        print(f"no page: {sentence}", file=stream)
        return
    page = folder / "report.html"
    build([folder], command=shlex.join(["maclaurin", "report", str(folder)])).write(page)
    print(page, file=stream)
