"""`maclaurin bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maclaurin.commands.output import Json, print_json, screen, talk


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            help="limits, attention, forms, decode, mixers, peers, memory, training, transformers, roofline, sequences, scale, gpu; "
            "all that can run."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch and the kernels; with 1, times are CPU times.")] = 2,
    long: Annotated[bool, typer.Option("--long", help="Also the longest sequences, which take softmax minutes.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of bench.json and of the page with the figures.")] = Path("results"),
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory against PyTorch's attention and other peers, side by side in one process."""
    from maclaurin.bench import run
    from maclaurin.bench.page import page
    from maclaurin.common.files import write_json

    with talk(as_json=as_json):
        results = run(parts or [], threads=threads, long=long, console=screen())
        write_json(output / "bench.json", results.to_json())
        made = page(results)
        made.write(output / "bench.html")
        if png is not None:
            from maclaurin.page.png import export

            for path in export(made.charts(), png):
                print(path)
        print(output / "bench.json")
        print(output / "bench.html")
    if as_json:
        print_json(results.to_json())
