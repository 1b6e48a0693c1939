"""`maclaurin lab`: a group with a command for each experiment, whose flags are the arguments of its function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from maclaurin.commands.declared import declared
from maclaurin.commands.fields import takes
from maclaurin.commands.lazy import PLAIN, LazyGroup
from maclaurin.commands.output import print_json, screen
from maclaurin.lab import EXPERIMENTS, HELPERS, Result


@dataclass(frozen=True)
class Settings:
    """Flags of every experiment, before or after its name."""

    quick: bool = field(default=False, metadata={"help": "Fewer draws and smaller sizes: all in minutes."})
    seed: int = field(default=0, metadata={"help": "Seed of all random numbers."})
    jobs: int | None = field(default=None, metadata={"help": "Of `all`: parallel processes; as many as cores if not given."})
    output: Path = field(
        default=Path("results/lab"), metadata={"help": "Folder of the figures and the pages, one for each experiment."}
    )
    png: Path | None = field(default=None, metadata={"help": "Also write every figure as a PNG file into this folder."})
    json: bool = field(default=False, metadata={"help": "Print JSON instead of a table."})


class Experiments(LazyGroup):
    lines = EXPERIMENTS | {
        "all": "all of these, and a table of all claims",
        "card": "the report card of mixers or of folders of trained models, side by side",
    }

    @staticmethod
    def load(name: str) -> Callable[..., None]:
        return _everything if name == "all" else _experiment(name)


lab = typer.Typer(cls=Experiments, **PLAIN, subcommand_metavar="EXPERIMENT [FLAGS]…")


@lab.callback(invoke_without_command=True)
@takes("given", Settings)
def group(context: typer.Context, given: dict[str, Any]) -> None:
    """Compute claims of the theory, beside the published numbers, and say which held."""
    context.obj = given
    if context.invoked_subcommand is None:
        print(context.get_help())


def _experiment(name: str) -> Callable[..., None]:
    """The command of one experiment, or of the card, with the arguments of the function."""
    card = name == "card"
    own = name.replace("-", "_")
    function = declared(HELPERS[name] if card else f"maclaurin.lab.experiments.{own}", own)

    @takes("given", Settings)
    @takes("options", function, without=("quick", "seed"))
    def command(of_shell: typer.Context, given: dict[str, Any], options: dict[str, Any]) -> None:  # none has such a flag
        from maclaurin import lab as experiments
        from maclaurin.common.progress import running
        from maclaurin.lab.run import keep, run_one
        from maclaurin.processes.command import command_line
        from maclaurin.processes.stopping import STOPS, end_stopped

        settings = Settings(**of_shell.obj | given)
        options |= {"quick": settings.quick, "seed": settings.seed}
        try:
            if card:  # which says what it measures
                result = experiments.card(*options.pop("names", ()), **options)
            else:
                with running(f"lab {name}"):
                    result = run_one(name, options)
        except STOPS as stop:
            end_stopped(stop, f"start again with: {command_line()}")
        keep(result, settings.output)
        _publish([result], settings, f"{name}.html")

    command.__doc__ = function.__doc__
    return command


@takes("given", Settings)
def _everything(context: typer.Context, given: dict[str, Any]) -> None:
    """All experiments, and a table of all claims. Each is saved when it is finished, even if others fail."""
    from maclaurin.common.cores import cores
    from maclaurin.lab.run import keep, run_all
    from maclaurin.processes.command import command_line
    from maclaurin.processes.stopping import STOPS, end_stopped

    settings = Settings(**context.obj | given)
    results: list[Result] = []
    options = {"quick": settings.quick, "seed": settings.seed}
    order, jobs = list(EXPERIMENTS), settings.jobs or cores()
    print(f"{len(order)} experiments, {min(jobs, len(order))} at a time", file=sys.stderr)
    try:
        for result in run_all(order, options, jobs):
            keep(result, settings.output)
            results.append(result)
            print(f"[{len(results)}/{len(order)}] {result.name}: {result.seconds:.0f} core-seconds", file=sys.stderr)
    except STOPS as stop:
        kept = f"{len(results)} of {len(order)} experiments are in {settings.output}"
        end_stopped(stop, f"{kept}; start again with: {command_line()}")
    _publish(sorted(results, key=lambda result: order.index(result.name)), settings, "lab.html")


def _publish(results: Sequence[Result], settings: Settings, page: str) -> None:
    """On the screen: one result in full, or the claims of several; and the page of this name, or why there is none."""
    from maclaurin.page import missing

    if settings.json:
        print_json([json.loads(result.to_json()) for result in results])
    elif len(results) == 1:
        screen().print(results[0].renderable())
    else:
        _show_claims(results)
    if sentence := missing():
        print(f"no page: {sentence}", file=sys.stderr)
        return
    for path in _write_page(results, settings.output / page, settings.png):
        print(path, file=sys.stderr if settings.json else sys.stdout)


def _show_claims(results: Sequence[Result]) -> None:
    from maclaurin.lab.result import claims_table

    console = screen()
    claims = [(result.name, claim) for result in results for claim in result.claims]
    console.print(claims_table(claims, "All claims"))
    applying = [claim for _, claim in claims if claim.held is not None]
    held = sum(claim.held is True for claim in applying)
    console.print(f"{held} of {len(applying)} claims held, in {sum(result.seconds for result in results):.0f} core-seconds")


def _write_page(results: Sequence[Result], path: Path, png: Path | None) -> list[Path]:
    """The page, and the figures as PNG files if a folder for them is given."""
    from maclaurin.lab.page import page
    from maclaurin.page.png import export

    made = page(results)
    made.write(path)
    return [*(export(made.charts(), png) if png is not None else ()), path]
