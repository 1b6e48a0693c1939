"""`maclaurin report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from maclaurin.commands.output import Json, print_json, talk, typed


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with runs of `maclaurin train`, `compare`, `suite`, `convert` or `lab`.")
    ],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder if not given.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    measure: Annotated[bool, typer.Option(help="Time a layer of each mixer on this machine, up to 20 seconds.")] = True,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about runs and suites: results, curves, cost, state size, and the commands."""
    from maclaurin.report import build, standings

    path = output or folders[0] / "report.html"
    with talk(as_json=as_json):
        page = build(folders, measure=measure, command=typed())
        page.write(path)
        figures = []
        if png is not None:
            from maclaurin.page.png import export

            figures = export(page.charts(), png)
        for file in (*figures, path):
            print(file)
    if as_json:
        rows = list(map(dataclasses.asdict, standings(folders)))
        print_json({"page": str(path), "figures": list(map(str, figures)), "rows": rows})
