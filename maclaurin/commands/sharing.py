"""Flags of commands that train many small models, which several processes and machines can share through a folder."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from maclaurin.commands.output import without
from maclaurin.common.arguments import at_least_one
from maclaurin.processes.command import command_line

Shard = Annotated[
    str,
    typer.Option(
        metavar="I/N",
        show_default=False,
        help="Share the work with N - 1 other processes in the same folder, and begin with the I-th of N parts.",
    ),
]
PrintCommands = Annotated[
    int | None,
    typer.Option(
        "--print_commands", metavar="N", help="Print the commands of N processes that share the work, and train nothing."
    ),
]
OnlyTable = Annotated[bool, typer.Option("--table", help="Print the table of what is done, and train nothing.")]


def print_commands(count: int) -> None:
    """One per line: line I is that of task I of an array of jobs."""
    at_least_one("print_commands", count)
    words = without(without(sys.argv[1:], "--print-commands"), "--shard")
    for part in range(1, count + 1):
        print(command_line([*words, "--shard", f"{part}/{count}"]))
