"""`maclaurin compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from maclaurin.commands.output import Json, comma_list, print_json, screen, talk, typed, write_report
from maclaurin.commands.recipe import takes_recipe
from maclaurin.commands.sharing import OnlyTable, PrintCommands, Shard, print_commands
from maclaurin.common.shards import WHOLE
from maclaurin.training.budgets import BUDGETS, DEFAULT


@takes_recipe(
    defaults=BUDGETS[DEFAULT].recipe
    | {"learning_rate": "those of --learning_rates", "warmup_steps": "the budget's share of the steps"},
    without=("mixer", "mixer_options"),  # which are those of the contenders
)
def compare(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML file with the same names as the flags.")] = None,
    mixers: Annotated[
        str,
        typer.Option(
            help="Contenders, separated by commas: any registered mixers, with options as in "
            "gla,2mamba:conv_width=4,gate=true; those of the block if not given."
        ),
    ] = "",
    block: Annotated[
        str, typer.Option(help="What surrounds each mechanism: gated, llama, or published for the rows of the thesis.")
    ] = "gated",
    budget: Annotated[str, typer.Option(help="minutes, hour or night; flags change its parts.")] = DEFAULT,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each contender, from --seed on; the budget's.")] = None,
    learning_rates: Annotated[
        str | None, typer.Option(help="Tried on the first seed, separated by commas; the budget's if not given.")
    ] = None,
    second_corpus: Annotated[
        str | None, typer.Option(help="Compare on this text too; the budgets hour and night ask for one.")
    ] = None,
    recall: Annotated[bool, typer.Option("--recall/--no_recall", help="Train small models to recall pairs, too.")] = True,
    recall_steps: Annotated[
        int | None, typer.Option(help="Steps of these at most; each stops once it recalls; the budget's if not given.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel processes; as many as cores for small models.")] = None,
    shard: Shard = WHOLE,
    commands: PrintCommands = None,
    only_table: OnlyTable = False,
    as_json: Json = False,
) -> None:
    """Train several mixers at an equal budget and print which models text best, recalls best and costs least; resumes."""
    from maclaurin.comparison.run import Asked, answered, so_far
    from maclaurin.processes.command import command_line
    from maclaurin.processes.stopping import STOPS, end_stopped
    from maclaurin.training.configured import compare_recipe
    from maclaurin.training.tables import result_table

    if commands is not None:
        return print_commands(commands)
    recipe, rates = compare_recipe(given, config, budget=budget, learning_rates=_rates(learning_rates))
    most = BUDGETS[budget].seeds if seeds is None else seeds
    asked = Asked(recipe, rates, most, mixers, block, budget, recall, recall_steps)
    console = screen()
    if only_table:
        return console.print(result_table(so_far(asked), recipe))
    try:
        found = answered(asked, second_corpus, jobs=jobs, command=typed(), shard=shard)
    except STOPS as stop:
        end_stopped(stop, f"go on with: {command_line()}")
    with talk(as_json=as_json):
        for one in found:
            console = screen()
            console.print(result_table(one.rows, one.recipe))
            for sentence in (*one.answers, BUDGETS[budget].shows):
                console.print(sentence, soft_wrap=True)
            console.print(f"figures: {one.path}")
            write_report(one.path.parent, sys.stdout)
    if as_json:
        contents = [one.content for one in found]
        print_json(contents[0] if len(contents) == 1 else contents)


def _rates(text: str | None) -> list[float]:
    try:
        return [float(part) for part in comma_list(text)]
    except ValueError:
        raise ValueError(f"learning_rates must be numbers separated by commas, got {text!r}") from None
