"""Tables made again: small models in the processes of the suites, experiments of the lab, and the published recipes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maclaurin.common.files import read_json, write_json, write_text
from maclaurin.common.records import Json, Record
from maclaurin.common.shards import WHOLE
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.planning import check
from maclaurin.evals.results import ResultTable
from maclaurin.evals.runner import Watch, run
from maclaurin.lab.result import Result
from maclaurin.lab.run import run_one
from maclaurin.reproduce.first_step import first_step
from maclaurin.reproduce.table import BUDGETS, Table
from maclaurin.reproduce.tuning import cells_of_tuned, result, tuned, tuning_cells
from maclaurin.reproduce.verdict import Verdict, verdict


@dataclass(frozen=True)
class Planned(Record):
    """A row at the published size: its recipe in a file, the command that trains it, and its loss once there is one."""

    label: str
    command: str
    parameters: int
    published: float | None
    loss: float | None


@dataclass(frozen=True)
class Found:
    """A table as it came out: of small models `trained` with its verdict, of the lab `computed`, of recipes `planned`.

    unavailable: why it cannot be had at this budget.
    """

    table: Table
    trained: ResultTable | None = None
    verdict: Verdict | None = None
    computed: Result | None = None
    planned: Sequence[Planned] = ()
    unavailable: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        values: dict[str, Any] = {"table": self.table.name, "shows": self.table.shows, "where": self.table.where}
        values["published"] = {} if self.table.in_words else dict(self.table.published)
        if self.trained is not None and self.verdict is not None:
            values |= {"verdict": self.verdict.to_json(), "result": self.trained.to_json()}
        if self.computed is not None:
            values["lab"] = json.loads(self.computed.to_json())
        if self.planned:
            values["planned"] = [row.to_json() for row in self.planned]
        return values | ({"unavailable": self.unavailable} if self.unavailable else {})


def experiment_of(table: Table, budget: str, *, seeds: int | None = None, steps: int | None = None) -> Experiment | None:
    """The small models of a budget, checked: what cannot be trained is refused before any training starts."""
    experiment = table.experiments.get(budget)
    if experiment is None:
        return None
    if steps is not None:
        experiment = replace(experiment, setting=replace(experiment.setting, steps=steps))
    known = {label: text for label in experiment.rows if (text := table.text_of(label))}
    experiment = replace(
        experiment,
        seeds=experiment.seeds if seeds is None else seeds,
        published={**known, **experiment.published},
        source=experiment.source or table.where,
    )
    check(experiment)
    return experiment


@dataclass(frozen=True)
class Training:
    """jobs: parallel processes. shard: the part of the cells to begin with; None to train nothing."""

    jobs: int
    shard: str | None = WHOLE


def trained(table: Table, experiment: Experiment, folder: Path, how: Training, *, watch: Watch) -> Found:
    """Train what is not done yet; cells are in `folder`, which all tables of a paper share."""
    errors: dict[str, str] = {}
    if how.shard is not None:
        errors |= run(tuning_cells(experiment), folder, jobs=how.jobs, watch=watch, shard=how.shard)
        following = cells_of_tuned(tuned(experiment, folder))
        errors |= run(following, folder, jobs=how.jobs, watch=watch, shard=how.shard)
    found = result(experiment, folder, errors)
    return Found(table, found, verdict(table, found), errors=errors)


def kept(table: Table, folder: Path) -> Found | None:
    """The lab's result, if the folder has it."""
    file = _lab_file(table, folder)
    return Found(table, computed=Result.from_json(file.read_text(encoding="utf-8"))) if file.is_file() else None


def computed(table: Table, budget: str, folder: Path) -> Found:
    """By the lab, unless the folder has the result."""
    if found := kept(table, folder):
        return found
    name, options = table.lab[budget]
    result = run_one(name, dict(options), 1)
    write_text(_lab_file(table, folder), result.to_json())
    return Found(table, computed=result)


def _lab_file(table: Table, folder: Path) -> Path:
    return folder / f"{table.name}.lab.json"  # two tables may have one experiment, with other options


def planned(table: Table, folder: Path, tell: Callable[[str], None]) -> Found:
    """The recipe of every row as a file, each built once to see that its first step fits; losses of those that are done."""
    rows = []
    for label, recipe in table.recipes(str(folder / table.name)).items():
        step = first_step(recipe)
        tell(f"{table.name}, {label}: {step.parameters:,} parameters, {step.tokens:,} tokens per step")
        file = Path(f"{recipe.output}.yaml")
        fields = {name: value for name, value in vars(recipe).items() if value != getattr(type(recipe), name, None)}
        write_json(file, fields)  # JSON is YAML
        command = f"torchrun --nproc_per_node gpu -m maclaurin train --config {file}"
        published = None if table.in_words else table.published.get(label)
        rows.append(Planned(label, command, step.parameters, published, _loss(Path(recipe.output))))
    return Found(table, planned=rows)


def _loss(folder: Path) -> float | None:
    """The last validation loss of a run, if it has one."""
    losses = []
    log = folder / "log.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line that is being written
        if isinstance(entry, dict) and isinstance(loss := entry.get("eval_loss"), int | float) and math.isfinite(loss):
            losses.append(float(loss))
    return losses[-1] if losses else None


def unavailable(table: Table, budget: str) -> Found:
    others = " and ".join(repr(other) for other in table.budgets())
    why = f": {table.only}" if table.only and budget != "paper" else ""
    return Found(table, unavailable=f"{table.name} has no budget {budget!r}{why}; it has {others}")


def save(found: Sequence[Found], paper: str, budget: str, command: str, folder: Path) -> Path:
    """All results of a paper at a budget in one file: tables that were made before stay in it."""
    path = folder / "reproduce.json"
    before: dict[str, Any] = {}
    if path.is_file():
        earlier = read_json(path)
        before = {one["table"]: one for one in earlier.get("tables", []) if earlier.get("budget") == budget}
    tables = before | {one.table.name: one.to_json() for one in found}
    write_json(path, {"paper": paper, "budget": budget, "command": command, "tables": list(tables.values())})
    return path


__all__ = [
    "BUDGETS",
    "Found",
    "Planned",
    "Training",
    "computed",
    "experiment_of",
    "planned",
    "save",
    "trained",
    "unavailable",
]
