"""`maclaurin convert`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from maclaurin.commands.fields import takes
from maclaurin.commands.output import Json, print_json, screen, write_report
from maclaurin.training.conversion import Plan, whole_numbers


@takes("given", Plan)
def convert(
    given: dict[str, Any],
    folder: Annotated[str | None, typer.Argument(metavar="SOURCE", help="The source, as with --source.")] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths at which speed and memory are measured; empty for none.")
    ] = "512,1024,2048,4096",
    from_thesis: Annotated[
        Path | None, typer.Option(help="Instead of a source: folder of a checkpoint of arXiv 2507.23632 or 2602.17363.")
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option("--import", help="Instead of a source: folder of a published linear model (docs/transformers.md)."),
    ] = None,
    rounded_positions: Annotated[
        bool,
        typer.Option("--rounded-positions", help="With --from-thesis: softmax with positions rounded to bfloat16."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a trained softmax model linear: transfer, recover, evaluate. The same command resumes where it stopped."""
    sources = [source for source in (folder, given.get("source"), from_thesis, import_) if source]
    if len(sources) != 1:
        raise ValueError("give a source to convert, --from-thesis FOLDER or --import FOLDER, and not both")
    if import_ is not None:
        _import_layout(import_, given.get("output", ""))
        return
    if from_thesis is not None:
        _import(from_thesis, given.get("output", ""), rounded_positions=rounded_positions)
        return
    measured = tuple(whole_numbers("lengths", lengths))
    plan = plan_of(given | {"source": sources[0]})
    _convert(plan, measured, as_json=as_json)
    write_report(Path(plan.output), sys.stderr if as_json else sys.stdout)


def plan_of(given: dict[str, Any]) -> Plan:
    """The plan; flags that are not given have the defaults of the kind of source."""
    from maclaurin.convert.defaults import defaults
    from maclaurin.convert.sources import recognise

    Plan(**given)  # bad flags are refused before a source is opened
    return Plan(**defaults(recognise(given["source"])) | given)


def _import_layout(checkpoint: Path, output: str) -> None:
    from maclaurin.convert.layouts import import_layout

    if not output:
        raise ValueError("give --output, the folder of the model")
    for line in import_layout(checkpoint, Path(output)):
        print(line)


def _import(checkpoint: Path, output: str, *, rounded_positions: bool) -> None:
    from maclaurin.convert.thesis import import_checkpoint

    if not output:
        raise ValueError("give --output, the folder of the model")
    for line in import_checkpoint(checkpoint, Path(output), rounded_positions=rounded_positions):
        print(line)


def _convert(plan: Plan, lengths: tuple[int, ...], *, as_json: bool) -> None:
    from maclaurin.convert.result import cost_table, result_table
    from maclaurin.convert.run import convert_all
    from maclaurin.convert.trend import trend
    from maclaurin.machine.allocator import grow_segments, keep_freed_memory
    from maclaurin.processes.command import command_line
    from maclaurin.processes.stopping import STOPS, end_stopped

    keep_freed_memory()
    grow_segments()
    try:
        results = convert_all(plan, partial(print, file=sys.stderr), lengths=lengths)
    except STOPS as stop:  # between stages, or for the second time within one
        end_stopped(stop, f"go on with: {command_line()}")
    figures = [result.figures for result in results]
    if as_json:
        print_json([one.to_json() for one in figures])
    else:
        console = screen()
        for table in (result_table(figures), cost_table(figures)):
            if table is not None:
                console.print(table)
        for one in figures:
            if (found := trend(one)) is not None:
                console.print(f"{one.plan.title}: {found}")
    if not all(result.finished for result in results):
        end_stopped(KeyboardInterrupt(), f"go on with: {command_line()}")
