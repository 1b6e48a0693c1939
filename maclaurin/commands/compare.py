"""`maclaurin compare`."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from maclaurin.commands.output import Json, print_json, screen, talk, typed, write_report
from maclaurin.commands.recipe import takes_recipe
from maclaurin.training.contenders import BUDGET, CONTENDERS


@takes_recipe(defaults=BUDGET, without=("mixer", "mixer_options"))  # which are those of the contenders
def compare(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML file with the same names as the flags.")] = None,
    mixers: Annotated[
        str,
        typer.Option(
            help="Contenders, separated by commas: these, or any registered mixers, with options as in "
            "gla,2mamba:conv_width=4,gate=true."
        ),
    ] = ",".join(CONTENDERS),
    seeds: Annotated[int, typer.Option(help="Seeds of each contender, from --seed on.")] = 2,
    as_json: Json = False,
) -> None:
    """Train several mixers at an equal budget and print which one wins; resumes after an interruption."""
    from maclaurin.common.files import write_json
    from maclaurin.processes.command import command_line
    from maclaurin.processes.lock import locked
    from maclaurin.processes.stopping import STOPS, end_stopped
    from maclaurin.training.compare import execute, plan, summary
    from maclaurin.training.configured import compare_recipe
    from maclaurin.training.tables import LiveTable, result_table

    recipe = compare_recipe(given, config)
    runs = plan(recipe, mixers, seeds)
    folder = Path(recipe.output)
    try:
        with locked(folder / "compare.lock", f"comparison {recipe.output!r}"), LiveTable(runs, recipe.steps) as table:
            for run in runs:
                if run.result() is None:
                    table.start(run)
                    execute(run, partial(table.update, run))
                table.end(run)
    except STOPS as stop:
        end_stopped(stop, f"go on with: {command_line()}")
    rows = summary(runs)
    path = folder / "compare.json"
    content = {"command": typed(), "recipe": vars(recipe), "rows": list(map(dataclasses.asdict, rows))}
    write_json(path, content)
    with talk(as_json=as_json):
        console = screen()
        console.print(result_table(rows, recipe))
        console.print(f"figures: {path}")
        write_report(folder, sys.stdout)
    if as_json:
        print_json(content)
