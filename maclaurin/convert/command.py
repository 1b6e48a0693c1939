"""`maclaurin convert`: the fields of a Plan as flags; a table on the screen, figures in the output's folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from transformers import HfArgumentParser

from maclaurin.convert.plan import Plan, defaults, whole_numbers
from maclaurin.convert.result import cost_table, result_table
from maclaurin.convert.run import convert_all
from maclaurin.convert.sources import recognise
from maclaurin.convert.thesis import import_checkpoint
from maclaurin.machine.allocator import keep_freed_memory
from maclaurin.processes.stopping import STOPS, exit_code


def execute(flags: dict[str, Any], console: Console) -> Path | None:
    """What was parsed, done; the folder that a report can now be written about, if any."""
    if flags["from_thesis"]:
        if not flags["output"]:
            raise ValueError("give --output, the folder of the model")
        folders = (Path(flags[name]) for name in ("from_thesis", "output"))
        for line in import_checkpoint(*folders, rounded_positions=flags["rounded_positions"]):
            print(line)
        return None
    lengths = tuple(whole_numbers("lengths", flags["lengths"]))
    plan = plan_of(flags)
    _convert(plan, lengths, console, as_json=flags["json"])
    return Path(plan.output)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Fields of a plan that were not given are None."""
    flags = vars(_parser().parse_args(arguments))
    sources = [flags[name] for name in ("folder", "source", "from_thesis") if flags[name]]
    if len(sources) != 1:
        raise ValueError("give a source to convert, or --from-thesis FOLDER, and not both")
    return flags | {"source": sources[0]}


def plan_of(flags: dict[str, Any]) -> Plan:
    """The rest as suits the source."""
    known = {field.name for field in dataclasses.fields(Plan)}
    given = {name: value for name, value in flags.items() if name in known and value is not None}
    Plan(**given)  # what is wrong with the flags themselves is said before a source is looked for
    return Plan(**defaults(recognise(given["source"])) | given)


def _parser() -> Any:
    parser: Any = HfArgumentParser(
        Plan,
        prog="maclaurin convert",
        description="Make a trained softmax model linear.",
        allow_abbrev=False,
        formatter_class=argparse.HelpFormatter,  # a plan says itself what its defaults are
    )
    parser.set_defaults(**dict.fromkeys(field.name for field in dataclasses.fields(Plan)))
    parser.add_argument("folder", nargs="?", metavar="SOURCE", help="The source, as with --source.")
    lengths = "Where speed and memory are measured; empty for nowhere (default: %(default)s)."
    parser.add_argument("--lengths", default="512,1024,2048,4096", help=lengths)
    parser.add_argument("--from-thesis", "--from_thesis", help="Instead of a source: folder of a checkpoint of the thesis.")
    rounded = "Of a checkpoint of the thesis: softmax with positions rounded to bfloat16."
    parser.add_argument("--rounded-positions", "--rounded_positions", action="store_true", help=rounded)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    return parser


def _convert(plan: Plan, lengths: tuple[int, ...], console: Console, *, as_json: bool) -> None:
    keep_freed_memory()
    try:
        results = convert_all(plan, partial(print, file=sys.stderr), lengths=lengths)
    except STOPS as stop:  # between stages, or for the second time within one
        _stop(exit_code(stop))
    figures = [result.figures for result in results]
    if as_json:
        print(json.dumps([one.to_json() for one in figures], indent=2))
    else:
        for table in (result_table(figures), cost_table(figures)):
            if table is not None:
                console.print(table)
    if not all(result.finished for result in results):
        _stop(128 + signal.SIGINT)


def _stop(code: int) -> NoReturn:
    print("maclaurin: stopped; the same command goes on", file=sys.stderr)
    raise SystemExit(code)
