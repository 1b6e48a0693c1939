"""A comparison from its request to its answers: text, recall and costs, each resumed where it stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import at_least_one
from maclaurin.common.cores import cores
from maclaurin.common.files import read_json, write_json
from maclaurin.common.shards import WHOLE, read
from maclaurin.common.timing import Timing
from maclaurin.comparison import answers
from maclaurin.comparison import recall as recalling
from maclaurin.comparison.costs import decoding
from maclaurin.processes.lock import locked
from maclaurin.training.budgets import BUDGETS
from maclaurin.training.compare import Run, following, plan, summary
from maclaurin.training.contenders import chosen
from maclaurin.training.execution import default_jobs, execute
from maclaurin.training.recipe import Recipe
from maclaurin.training.run import check_starts
from maclaurin.training.statistics import Recall, Standing
from maclaurin.training.tables import LiveTable


@dataclass(frozen=True)
class Asked:
    recipe: Recipe
    learning_rates: tuple[float, ...]
    seeds: int
    mixers: str | Sequence[str]
    block: str
    budget: str
    recall: bool = True
    recall_steps: int | None = None  # the budget's if not given

    def plan(self) -> list[Run]:
        return plan(self.recipe, self.mixers, self.seeds, learning_rates=self.learning_rates, block=self.block)

    def total(self, runs: Sequence[Run]) -> int:
        """Of the runs, those included that are not known before others are done."""
        several = len(set(self.learning_rates)) > 1
        return len(runs) + (self.seeds - 1) * len({run.name for run in runs}) * several


@dataclass(frozen=True)
class Answered:
    """path: of compare.json, which holds the content."""

    path: Path
    recipe: Recipe
    rows: list[Standing]
    answers: list[str]
    content: dict[str, Any]


def so_far(asked: Asked) -> list[Standing]:
    """The rows over the runs that are done, with nothing but what their training gave."""
    runs = asked.plan()
    return summary([*runs, *following(runs, asked.seeds)])


def answered(
    asked: Asked, second_corpus: str | None, *, jobs: int | None, command: str, shard: str = WHOLE
) -> list[Answered]:
    """One per corpus. What cannot be compared is refused before any training starts."""
    if BUDGETS[asked.budget].corpora > 1 and second_corpus is None:
        raise ValueError(
            f"the budget {asked.budget!r} has two corpora: give the other one as --second_corpus, see docs/training.md"
        )
    requests = [asked] if second_corpus is None else [asked, _second(asked, second_corpus)]
    plans = [request.plan() for request in requests]
    if jobs is not None:
        at_least_one("jobs", jobs)
    for own in plans:
        check_starts(own[0].recipe)
    contenders = chosen(asked.mixers, asked.block)
    experiment = recalling.experiment(contenders, asked.budget, asked.recall_steps) if asked.recall else None
    folder = Path(asked.recipe.output)
    alone = locked(folder / "compare.lock", f"comparison {asked.recipe.output!r}")
    with alone if read(shard) == read(WHOLE) else nullcontext():
        runs = [_trained(request, own, jobs, shard) for request, own in zip(requests, plans, strict=True)]
        recalled = {} if experiment is None else _recalled(experiment, folder / recalling.FOLDER, jobs, command, shard)
        costs = _costs({run.name: run.recipe for run in plans[0]}, folder / "costs.json")
        return [_answered(request, own, recalled, costs, command) for request, own in zip(requests, runs, strict=True)]


def _second(asked: Asked, corpus: str) -> Asked:
    """The same on another text, in a folder beside the first one."""
    recipe = dataclasses.replace(asked.recipe, corpus=corpus, output=f"{asked.recipe.output}-{Path(corpus).name}")
    return dataclasses.replace(asked, recipe=recipe)


def _trained(asked: Asked, runs: list[Run], jobs: int | None, shard: str) -> list[Run]:
    """All runs, with the seeds that follow the choice of the learning rates."""
    with LiveTable(runs, asked.recipe.steps, asked.total(runs)) as table:
        execute(
            runs,
            table,
            jobs=default_jobs(runs) if jobs is None else jobs,
            more=lambda: following(runs, asked.seeds),
            shard=shard,
        )
    return [*runs, *following(runs, asked.seeds)]


def _recalled(experiment: Any, folder: Path, jobs: int | None, command: str, shard: str) -> dict[str, Recall]:
    from maclaurin.evals.results import SuiteResult
    from maclaurin.evals.runner import load
    from maclaurin.evals.tables import Watcher

    cells = experiment.cells(experiment.seeds)
    done = sum(load(cell, folder) is not None for cell in cells)
    with Watcher(len(cells), done) as watch:
        most = cores() if jobs is None else jobs
        table, errors = recalling.trained(experiment, folder, jobs=most, watch=watch, shard=shard)
    if errors:
        raise ValueError(f"recall failed, the first time with: {next(iter(errors.values()))}")
    write_json(folder / "results.json", SuiteResult(command, "recall", [table]).to_json())
    return recalling.figures(table)


def _costs(recipes: Mapping[str, Recipe], path: Path) -> dict[str, Timing]:
    """Measured once for these contenders."""
    key = {name: [recipe.mixer, recipe.mixer_options, *map(int, _sizes(recipe))] for name, recipe in recipes.items()}
    if path.exists():
        saved = read_json(path)
        if saved.get("layers") == key and "decoding" in saved:
            return {name: Timing(*quartiles) for name, quartiles in saved["decoding"].items()}
    measured = decoding(recipes)
    write_json(path, {"layers": key, "decoding": {name: dataclasses.astuple(found) for name, found in measured.items()}})
    return measured


def _decoding(found: Timing) -> dict[str, Any]:
    return {"decode_ms": found.median, "decode_quartiles": (found.low, found.high)}


def _sizes(recipe: Recipe) -> tuple[int, int, int]:
    config = recipe.config()
    return config.hidden_size, config.num_hidden_layers, config.num_attention_heads


def _answered(
    asked: Asked, runs: Sequence[Run], recalled: Mapping[str, Recall], costs: Mapping[str, Timing], command: str
) -> Answered:
    rows = [dataclasses.replace(row, recall=recalled.get(row.name), **_decoding(costs[row.name])) for row in summary(runs)]
    found = answers.sentences(rows)
    content = {
        "command": command,
        "recipe": vars(asked.recipe),
        "block": asked.block,
        "budget": asked.budget,
        "learning_rates": list(asked.learning_rates),
        "rows": list(map(dataclasses.asdict, rows)),
        "answers": found,
        "shows": BUDGETS[asked.budget].shows,
    }
    path = Path(asked.recipe.output) / "compare.json"
    write_json(path, content)
    return Answered(path, asked.recipe, rows, found, content)
