"""`maclaurin bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from maclaurin.commands.output import Json, print_json, screen, talk


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            help="limits, attention, forms, decode, mixers, peers, precision, memory, training, roofline, scale, gpu; all"
            " that can run. Only where they are named: model, transformers, sequences and serve."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch and the kernels; with 1, times are CPU times.")] = 2,
    long: Annotated[bool, typer.Option("--long", help="Also the longest sequences, which take softmax minutes.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of bench.json and of the page with the figures.")] = Path("results"),
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    size: Annotated[str, typer.Option(help="model: size of the models.")] = "small",
    layers: Annotated[int | None, typer.Option(help="model: layers, where not as many as the size has.")] = None,
    vocabulary: Annotated[int, typer.Option(help="model: tokens of the vocabulary.")] = 32000,
    mixers: Annotated[
        str | None, typer.Option(help="model and mixers: which ones, with commas; a+b alternates them in a model.")
    ] = None,
    lengths: Annotated[str | None, typer.Option(help="attention, forms, model: tokens of a sequence, with commas.")] = None,
    contexts: Annotated[str | None, typer.Option(help="model: tokens before a decoded one, with commas.")] = None,
    batches: Annotated[str | None, typer.Option(help="model: sequences that are decoded at once, with commas.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="model: keep the rows that --output has of a run before.")
    ] = False,
    architectures: Annotated[
        str | None, typer.Option(help="transformers: architectures, with commas; all unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory against PyTorch's attention and other peers, side by side in one process."""
    from maclaurin.bench import run
    from maclaurin.bench.model import LONG, Models
    from maclaurin.bench.page import page
    from maclaurin.bench.whole import Shape
    from maclaurin.common.files import write_json

    usual = LONG if long else Models()
    tokens = None if lengths is None else _numbers("lengths", lengths)
    models = Models(
        Shape(size, layers, vocabulary),
        usual.mixers if mixers is None else mixers.split(","),
        usual.lengths if tokens is None else tokens,
        usual.contexts if contexts is None else _numbers("contexts", contexts),
        usual.batches if batches is None else _numbers("batches", batches),
    )
    with talk(as_json=as_json):
        options: dict[str, dict[str, Any]] = {
            "attention": {"lengths": tokens},
            "forms": {"lengths": tokens},
            "mixers": {"names": None if mixers is None else mixers.split(",")},
            "model": {"models": models, "kept": output / "model.json", "resume": resume},
            "transformers": {"architectures": None if architectures is None else architectures.split(",")},
        }
        results = run(parts or [], threads=threads, long=long, console=screen(), options=options)
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


def _numbers(name: str, text: str) -> list[int]:
    """Of "512,2048"; an empty text is none."""
    try:
        found = [int(number) for number in text.split(",") if number]
    except ValueError:
        found = [0]
    if not all(number > 0 for number in found):
        raise ValueError(f"--{name} must be whole numbers above 0 with commas between them, got {text!r}")
    return found
