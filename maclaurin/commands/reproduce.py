"""`maclaurin reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.commands.output import Json, print_json, screen, talk, typed
from maclaurin.commands.sharing import OnlyTable, PrintCommands, Shard, print_commands
from maclaurin.common.shards import WHOLE

if TYPE_CHECKING:
    from maclaurin.reproduce.run import Found, Training
    from maclaurin.reproduce.table import Table


def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(help="paper-1, paper-2, dsf, metala, inline, luna, swax, selective-rope, separation or long-prompt."),
    ] = None,
    table: Annotated[str | None, typer.Argument(help="One of its tables; all of them if not given.")] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Print the tables, their rows and the published numbers, and train nothing.")
    ] = False,
    budget: Annotated[str, typer.Option(help="minutes, day, or paper: the published sizes, for a cluster.")] = "minutes",
    seeds: Annotated[int | None, typer.Option(help="Seeds per row and learning rate; the budget's if not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps at most; the budget's if not given.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel processes; as many as cores if not given.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; results/reproduce/PAPER-BUDGET if not given.")
    ] = None,
    shard: Shard = WHOLE,
    commands: PrintCommands = None,
    only_table: OnlyTable = False,
    as_json: Json = False,
) -> None:
    """Make the tables of a paper again, beside the published numbers: does their order hold? Resumes where it stopped."""
    from maclaurin.common.arguments import at_least_one, one_of
    from maclaurin.common.cores import cores
    from maclaurin.reproduce.papers import MODULES, paper_of, tables_of
    from maclaurin.reproduce.run import Training, save
    from maclaurin.reproduce.table import BUDGETS

    one_of("budget", budget, BUDGETS)
    for name, value in (("seeds", seeds), ("steps", steps), ("jobs", jobs)):
        if value is not None:
            at_least_one(name, value)
    if listing or paper is None:
        chosen = {name: tables_of(name, table) for name in ([paper] if paper else MODULES)}
        _show_list(chosen, as_json=as_json)
        return
    if commands is not None:
        return print_commands(commands)
    tables = tables_of(paper, table)
    folder = output or Path("results/reproduce") / f"{paper}-{budget}"
    with talk(as_json=as_json):
        how = Training(cores() if jobs is None else jobs, None if only_table else shard)
        found = _made(tables, budget, folder, how, seeds, steps)
        path = save(found, paper, budget, typed(), folder)
        _publish(paper_of(paper).title, budget, found, folder)
        print(f"figures: {path}")
    if as_json:
        print_json([one.to_json() for one in found])
    if errors := [error for one in found for error in one.errors.values()]:
        print(f"maclaurin: {len(errors)} cells failed, such as: {errors[0]}", file=sys.stderr)
        raise SystemExit(1)


def _show_list(papers: dict[str, list[Table]], *, as_json: bool) -> None:
    from maclaurin.reproduce.listing import described, lines

    if as_json:
        print_json([described(paper, table) for paper, tables in papers.items() for table in tables])
        return
    console = screen()
    for paper, tables in papers.items():
        for line in lines(paper, tables):
            console.print(line, markup=False, soft_wrap=True)


def _made(
    tables: Sequence[Table], budget: str, folder: Path, how: Training, seeds: int | None, steps: int | None
) -> list[Found]:
    from maclaurin.processes.command import command_line
    from maclaurin.processes.stopping import STOPS, end_stopped
    from maclaurin.reproduce.run import computed, experiment_of, kept, planned, unavailable

    experiments = {table.name: experiment_of(table, budget, seeds=seeds, steps=steps) for table in tables}
    found = []
    try:
        for table in tables:
            experiment = experiments[table.name]
            if experiment is not None:
                found.append(_trained(table, experiment, folder, how))
            elif how.shard is None:
                if done := kept(table, folder):
                    found.append(done)
                else:
                    print(f"{table.name} has no table before its end", file=sys.stderr)
            elif budget in table.lab:
                print(f"{table.name}: maclaurin lab {table.lab[budget][0]}", file=sys.stderr)
                found.append(computed(table, budget, folder))
            elif budget == "paper" and table.recipe:
                found.append(planned(table, folder, lambda line: print(line, file=sys.stderr)))
            else:
                found.append(unavailable(table, budget))
                print(found[-1].unavailable, file=sys.stderr)
    except STOPS as stop:
        end_stopped(stop, f"finished cells are in {folder}; go on with: {command_line()}")
    return found


def _trained(table: Table, experiment: Any, folder: Path, how: Training) -> Found:
    from maclaurin.evals.tables import Watcher
    from maclaurin.reproduce.cost import estimate
    from maclaurin.reproduce.run import trained

    cost = estimate(experiment, folder)
    print(f"{table.name}: {cost.text(how.jobs)}", file=sys.stderr)
    with Watcher(cost.cells, cost.done) as watch:
        return trained(table, experiment, folder, how, watch=watch)


def _publish(title: str, budget: str, found: Sequence[Found], folder: Path) -> None:
    from maclaurin.evals.tables import result_table
    from maclaurin.page import missing
    from maclaurin.reproduce.verdict import answer_text

    console = screen()
    for one in found:
        if one.trained is not None and one.verdict is not None:
            console.print(result_table(one.trained))
            for line in (one.verdict.sentence, *map(answer_text, one.verdict.answers)):
                console.print(line, markup=False, soft_wrap=True)
        elif one.computed is not None:
            console.print(one.computed.renderable())
        for row in one.planned:
            console.print(f"{row.label}: {row.command}", markup=False, soft_wrap=True)
    if sentence := missing():
        print(f"no page: {sentence}", file=sys.stderr)
        return
    from maclaurin.reproduce.page import page

    page(title, budget, found, typed()).write(folder / "reproduce.html")
    print(folder / "reproduce.html")
