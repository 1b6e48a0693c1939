"""`maclaurin lab`: the list, one experiment with its own flags, or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from maclaurin.common.cores import cores
from maclaurin.lab import EXPERIMENTS
from maclaurin.lab.flags import parse
from maclaurin.lab.result import Result, claims_table
from maclaurin.lab.run import function_of, keep, run_all, run_one
from maclaurin.page import missing


def contents(console: Console) -> None:
    """What there is."""
    table = Table(title="maclaurin lab NAME")
    table.add_column("experiment")
    table.add_column("what it asks")
    for name, summary in EXPERIMENTS.items():
        table.add_row(name, summary)
    table.add_row("all", "all of these, and a table of all claims")
    table.add_row("card NAME …", "the report card of mixers or of folders of trained models, side by side")
    console.print(table)
    console.print(
        "--quick for minutes, --seed, --json, --output FOLDER, --png FOLDER; maclaurin lab NAME --help for its own flags"
    )


def one(name: str, args: Sequence[str], *, quick: bool, seed: int) -> Result:
    if name == "card":
        return _card(args, quick=quick, seed=seed)
    function = function_of(name)
    options = parse(function, args, f"maclaurin lab {name}")
    return run_one(name, options | {"quick": quick, "seed": seed})


def _card(args: Sequence[str], *, quick: bool, seed: int) -> Result:
    """Mechanisms first, then flags."""
    from maclaurin.lab.cards import card

    flags = next((index for index, arg in enumerate(args) if arg.startswith("--")), len(args))
    options = parse(card, args[flags:], "maclaurin lab card MECHANISM …")
    return card(*args[:flags], **options | {"quick": quick, "seed": seed})


def everything(folder: Path, *, quick: bool, seed: int, jobs: int | None) -> list[Result]:
    """Kept one by one, so that what was finished before an interruption is there."""
    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("experiments", total=len(EXPERIMENTS))
        for result in run_all(list(EXPERIMENTS), {"quick": quick, "seed": seed}, jobs or cores()):
            keep(result, folder)
            results.append(result)
            progress.update(task, advance=1, description=f"{result.name}: {result.seconds:.0f} s")
    order = list(EXPERIMENTS)
    return sorted(results, key=lambda result: order.index(result.name))


def show(results: Sequence[Result], console: Console) -> None:
    """One in full; of several, the claims."""
    if len(results) == 1:
        console.print(results[0].renderable())
        return
    claims = [(result.name, claim) for result in results for claim in result.claims]
    console.print(claims_table(claims, "All claims"))
    applying = [claim for _, claim in claims if claim.held is not None]
    held = sum(claim.held is True for claim in applying)
    console.print(f"{held} of {len(applying)} claims held, in {sum(result.seconds for result in results):.0f} s of one core")


def write_page(results: Sequence[Result], folder: Path, png: Path | None) -> list[Path]:
    """The page, and the figures as PNG files where a folder for them is given."""
    if sentence := missing():
        raise ValueError(sentence)
    from maclaurin.lab.page import page
    from maclaurin.page.png import export

    made = page(results)
    made.write(folder / "lab.html")
    return [*(export(made.charts(), png) if png is not None else ()), folder / "lab.html"]
