"""The shell: parse, call, print."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Attention from linear to softmax, exact in every form.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
LENGTHS = (1024, 8192, 65536)


@app.command()
def mixers(
    name: Annotated[str | None, typer.Argument(help="Only this mixer, or a pattern such as '*mamba*'.")] = None,
    d_model: Annotated[int, typer.Option(help="Width of the model.")] = 1024,
    num_heads: Annotated[int, typer.Option(help="Number of heads.")] = 16,
    as_json: Json = False,
) -> None:
    """List the mixers: complexity, state size at 1k, 8k and 64k tokens, crossover with softmax, options."""
    from maclaurin.mixers.overview import overview, size_text

    facts = overview(name or "*", d_model, num_heads, LENGTHS)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(title=f"Mixers at d_model {d_model}, {num_heads} heads (state of one layer and sequence, float32)")
    for column in ("mixer", "training", "decoding"):
        table.add_column(column)
    for column in (*(f"{length // 1024}k tokens" for length in LENGTHS), "crossover"):
        table.add_column(column, justify="right")
    table.add_column("what it is")
    for row in facts:
        sizes = (size_text(nbytes) for nbytes in row["state_nbytes"].values())
        crossover = row["crossover"]
        table.add_row(
            row["name"],
            row["training"],
            row["decoding"],
            *sizes,
            "never" if crossover is None else str(crossover),
            row["summary"],
        )
    console = _console()
    console.print(table)
    console.print("crossover: from this many tokens on the state is no larger than softmax's keys and values\n")
    for row in facts:
        options = ", ".join(f"{option}={value!r}" for option, value in row["options"].items())
        console.print(f"[bold]{row['name']}[/bold]  {row['citation']}")
        for text in (options, *(row["help"].splitlines() if name else ())):
            console.print(Padding(Text(text), (0, 0, 0, 4)))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Print versions, devices, backends and what is missing, and check the arithmetic of this machine."""
    from maclaurin.doctor import examine

    report = examine()
    if as_json:
        print(json.dumps(report, indent=2))
        return
    table = Table(show_header=False)
    for section in ("versions", "devices", "backends", "checks"):
        for key, value in report[section].items():
            table.add_row(section, key, "not installed" if value is None else value)
    table.add_row("compiler", "C++", report["compiler"] or "not found")
    for sentence in report["missing"]:
        table.add_row("missing", "", sentence)
    _console().print(table)


# these commands have the fields of a Recipe as flags, which `transformers` parses
RECIPE_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=RECIPE_FLAGS)
def train(context: typer.Context) -> None:
    """Train a language model: flags, or --config FILE.yaml with the same names; --resume goes on."""
    from maclaurin.training import train as run
    from maclaurin.training.flags import parse

    recipe, resume = parse(context.args)
    result = run(recipe, resume=resume)
    console = _console()
    if result.finished:
        console.print(f"{result.steps} steps, held-out loss {result.held_out_loss:.4f}; the model is in {recipe.output}")
    else:
        console.print(f"stopped after step {result.steps}; go on with: maclaurin train --output {recipe.output} --resume")


@app.command(context_settings=RECIPE_FLAGS)
def compare(context: typer.Context) -> None:
    """Train several mixers at an equal budget and print which one wins; goes on where it was interrupted."""
    from maclaurin.report import build, missing
    from maclaurin.training.compare import execute, plan, summary
    from maclaurin.training.flags import parse_compare
    from maclaurin.training.show import LiveTable, result_table

    recipe, names, seeds = parse_compare(context.args)
    runs = plan(recipe, names, seeds)
    with LiveTable(runs, recipe.steps) as table:
        for run in runs:
            if run.result() is None:
                execute(run, partial(table.update, run))
            table.update(run, {})
    rows = summary(runs)
    path = Path(recipe.output) / "compare.json"
    command = shlex.join(["maclaurin", "compare", *context.args])
    path.write_text(json.dumps({"command": command, "recipe": vars(recipe), "rows": rows}, indent=2))
    console = _console()
    console.print(result_table(rows, recipe))
    console.print(f"figures: {path}")
    if sentence := missing():
        console.print(f"no page: {sentence}")
        return
    page = path.with_name("report.html")
    build([path.parent], command=f"maclaurin report {shlex.quote(str(path.parent))}").write(page)
    print(page)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with runs of `maclaurin train` or `maclaurin compare`.")],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder if not given.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    measure: Annotated[bool, typer.Option(help="Time a layer of each mixer on this machine, up to 20 seconds.")] = True,
) -> None:
    """Write one self-contained HTML page about runs: curves, results, cost, memory, and how they were made."""
    from maclaurin.report import build

    path = output or folders[0] / "report.html"
    page = build(folders, measure=measure, command=shlex.join(["maclaurin", *sys.argv[1:]]))
    page.write(path)
    if png is not None:
        from maclaurin.report.png import export

        for file in export(page.charts(), png):
            print(file)
    print(path)


def _console() -> Console:
    """As wide as the terminal; as wide as the text where the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def main(*args: Any) -> None:
    """Bad input is one sentence and exit code 2; anything else is a bug and shows where it happened."""
    try:
        app(*args)
    except (ValueError, TypeError, OSError) as error:
        print(f"maclaurin: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
