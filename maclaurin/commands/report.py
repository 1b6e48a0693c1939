"""`maclaurin report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maclaurin.commands.output import typed


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with runs of `maclaurin train`, `compare`, `suite`, `convert` or `lab`.")
    ],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder if not given.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    measure: Annotated[bool, typer.Option(help="Time a layer of each mixer on this machine, up to 20 seconds.")] = True,
) -> None:
    """Write one self-contained HTML page about runs and suites: results, curves, cost, state size, and the commands."""
    from maclaurin.report import build

    path = output or folders[0] / "report.html"
    page = build(folders, measure=measure, command=typed())
    page.write(path)
    if png is not None:
        from maclaurin.page.png import export

        for file in export(page.charts(), png):
            print(file)
    print(path)
