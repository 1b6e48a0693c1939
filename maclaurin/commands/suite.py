"""`maclaurin suite`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.commands.output import Json, comma_list, print_json, screen, typed
from maclaurin.commands.sharing import OnlyTable, PrintCommands, Shard, print_commands
from maclaurin.common.shards import WHOLE

if TYPE_CHECKING:
    from maclaurin.evals.results import ResultTable, SuiteResult


def suite(
    name: Annotated[str, typer.Argument(help="recall, track, needle, lra, mad, vision, swax, frontier or search.")],
    preset: Annotated[str, typer.Option(help="quick, standard or paper.")] = "quick",
    mixers: Annotated[
        str | None,
        typer.Option(
            help="Models of the suite, or any mixers, separated by commas, with options as in "
            "gla,2mamba:conv_width=4,gate=true."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per model and learning rate; the preset's if not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps at most; the preset's if not given.")] = None,
    learning_rates: Annotated[str | None, typer.Option(help="The grid, separated by commas.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the datasets of lra: aan, imdb, cifar10; else the hub.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Test this trained model instead of training small ones; needle only.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel processes; as many as cores if not given.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the results; results/NAME-PRESET if not given.")] = None,
    shard: Shard = WHOLE,
    commands: PrintCommands = None,
    only_table: OnlyTable = False,
    as_json: Json = False,
) -> None:
    """Train small models to see what mixers can do: recall, tracking, needles, the Arena. Resumes where it stopped."""
    from maclaurin.evals.planning import plan
    from maclaurin.evals.results import SuiteResult

    if commands is not None:
        return print_commands(commands)
    rates = [_number("learning_rates", rate) for rate in comma_list(learning_rates)]
    experiments = plan(name, preset, mixers=mixers or (), seeds=seeds, steps=steps, learning_rates=rates, data=data)
    folder = output or Path("results") / f"{name}-{preset}"
    errors: dict[str, str] = {}
    if model is None:
        train = partial(_trained, folder=folder, jobs=jobs, shard=None if only_table else shard)
        tables, errors = _searched(experiments, preset, train) if name == "search" else train(experiments)
    elif name == "needle":
        tables = _tested(model, experiments)
    else:
        raise ValueError(f"a trained model can be given to the suite 'needle' only; {name!r} trains its own")
    _publish(SuiteResult(typed(), name, tables), folder, as_json=as_json)
    if errors:
        count = "one cell" if len(errors) == 1 else f"{len(errors)} cells"
        print(f"maclaurin: {count} failed, such as: {next(iter(errors.values()))}", file=sys.stderr)
        raise SystemExit(1)


def _searched(experiments: list[Any], preset: str, train: Any) -> tuple[list[ResultTable], dict[str, str]]:
    """The same rung by rung, each with the models that the one before leaves."""
    from maclaurin.evals.halving import halve
    from maclaurin.evals.suites.search import REFERENCES, RUNGS

    return halve(experiments, RUNGS[preset], REFERENCES, train)


def _trained(
    experiments: list[Any], folder: Path, jobs: int | None, shard: str | None
) -> tuple[list[ResultTable], dict[str, str]]:
    """Train the unfinished cells, or none without a shard; returns the tables, and the errors by the key of the cell."""
    from maclaurin.common.cores import cores
    from maclaurin.evals.runner import load, run
    from maclaurin.evals.summary import summary
    from maclaurin.evals.tables import Watcher
    from maclaurin.processes.command import command_line
    from maclaurin.processes.stopping import STOPS, end_stopped

    try:
        cells = {cell.key: cell for experiment in experiments for cell in experiment.cells(experiment.seeds)}
    except ImportError as error:  # of the library that has a dataset; it says what to install
        raise ValueError(str(error)) from error
    if shard is None:
        return [summary(experiment, folder, {}) for experiment in experiments], {}
    done = sum(load(cell, folder) is not None for cell in cells.values())
    try:
        with Watcher(len(cells), done) as watch:
            errors = run(list(cells.values()), folder, jobs=cores() if jobs is None else jobs, watch=watch, shard=shard)
    except STOPS as stop:
        end_stopped(stop, f"finished cells are in {folder}; go on with: {command_line()}")
    return [summary(experiment, folder, errors) for experiment in experiments], errors


def _tested(model: str, experiments: list[Any]) -> list[ResultTable]:
    from maclaurin.common.progress import counted
    from maclaurin.evals.saved import needle_table
    from maclaurin.models.folder import open_model

    opened, tokenizer = open_model(model)
    tables = []
    for experiment in experiments:
        tests = counted(experiment.test, f"needles, of {len(experiment.test)} tests", "done")
        tables.append(needle_table(opened, tokenizer, Path(model).name, experiment, tests))
    return tables


def _publish(results: SuiteResult, folder: Path, *, as_json: bool) -> None:
    from maclaurin.common.files import write_json
    from maclaurin.evals.searched import search_table
    from maclaurin.evals.tables import distance_table, result_table
    from maclaurin.page import missing

    write_json(folder / "results.json", results.to_json())
    if as_json:
        print_json(results.to_json())
    else:
        console = screen()
        for table in results.tables:
            console.print(result_table(table))
            if by_distance := distance_table(table):
                console.print(by_distance)
        if results.tables[0].rung:
            console.print(search_table(results.tables))
        console.print(f"figures: {folder / 'results.json'}")
    if sentence := missing():
        print(f"no page: {sentence}", file=sys.stderr)
        return
    from maclaurin.evals.page import page

    page(results).write(folder / "eval.html")
    print(folder / "eval.html", file=sys.stderr if as_json else sys.stdout)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, got {text!r}") from None
