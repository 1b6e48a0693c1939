"""The runs in a set of folders, whole or broken, and which of them are the same but for the seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from maclaurin.common.files import naming, read_json
from maclaurin.models.config import named_options
from maclaurin.training.contenders import name_of
from maclaurin.training.model_size import Layers, layers, state_nbytes
from maclaurin.training.provenance import load_provenance
from maclaurin.training.recipe import Recipe
from maclaurin.training.statistics import Figures, Recall, Standing, best_rate, ranked, standing

Points = list[tuple[int, float]]  # step and loss

# fields in which the runs of a comparison may differ: the mixer, the folder, and what matches the number of parameters
OWN = ("output", "seed", "mixer", "mixer_options", "intermediate_size")
# and one more where each has its own by validation, and is judged by a test
CHOSEN = "learning_rate"
# fields that do not change what is learned
HOUSEKEEPING = ("save_every", "keep", "eval_every", "gradient_checkpointing", "peak_tflops", "track")
LARGEST = 1e18  # that a number of a file may be


@dataclass(frozen=True)
class SavedRun:
    """A folder of `maclaurin train`: its recipe, log and figures, and what is wrong with it."""

    folder: Path
    recipe: Recipe | None = None
    train: Points = field(default_factory=list)
    validation: Points = field(default_factory=list)
    test: Points = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    starts: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""

    @property
    def step(self) -> int:
        return max((step for step, _ in self.train + self.validation), default=0)

    @property
    def finished(self) -> bool:
        return not self.problem and self.recipe is not None and self.loss is not None

    @property
    def loss(self) -> float | None:
        """The one that is compared: of the test, where the recipe has one."""
        if self.recipe is None or not self.recipe.test_rows or self.validation_loss is None:
            return self.validation_loss
        return self.test[-1][1] if self.test and self.test[-1][0] >= self.recipe.steps else None

    @property
    def validation_loss(self) -> float | None:
        """After the last step: an earlier evaluation is not a result."""
        if self.recipe is None or not self.validation or self.validation[-1][0] < self.recipe.steps:
            return None
        return self.validation[-1][1]

    @property
    def seconds(self) -> float | None:
        return _number(self.result.get("seconds"))

    @property
    def load(self) -> float | None:
        """Of the machine, at its end."""
        return _number(self.result.get("load"))

    @property
    def status(self) -> str:
        if self.problem:
            return f"broken: {self.problem}"
        assert self.recipe is not None
        if self.finished:
            return "finished"
        return f"unfinished: {self.step} of {self.recipe.steps} steps" if self.step else "no figures yet"


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed: one line in a figure, one row in the table."""

    row: Standing
    mixer: str
    runs: list[SavedRun]

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def recipe(self) -> Recipe:
        return _recipe_of(self.runs)

    @property
    def done(self) -> list[SavedRun]:
        return [run for run in self.runs if run.finished]

    @cached_property
    def layers(self) -> Layers:
        return layers(self.recipe)

    def state_nbytes(self, length: int) -> int:
        return state_nbytes(self.layers, length)


def collect(folders: Sequence[Path]) -> list[SavedRun]:
    """Every run in the folders and below, in the order of the folders and then of their names."""
    found: dict[Path, SavedRun] = {}
    for folder in folders:
        marks = [path for name in ("recipe.json", "log.jsonl") for path in folder.rglob(name)]
        for own in sorted({path.parent for path in marks}):
            found.setdefault(own.resolve(), _read(own))
    return list(found.values())


def grouped(runs: Sequence[SavedRun]) -> list[Group]:
    """The groups, best first; those without a result come last. Broken runs are left out. Of runs that differ in the
    learning rate and have a test, those with the best one by validation are a group. Losses are those of the test if every
    run has one, otherwise of validation.
    """
    alike: dict[str, list[SavedRun]] = {}
    for run in runs:
        if run.recipe is not None:
            alike.setdefault(_key(run.recipe), []).append(run)
    chosen = [_with_best_rate(own) for own in alike.values()]
    recipes = [_recipe_of(own) for own, _ in chosen]
    named = dict(zip(_names(recipes), chosen, strict=True))
    tested = all(recipe.test_rows for recipe in recipes)
    rows = [standing(name, _recipe_of(own), _figures(own, tested), tried=tried) for name, (own, tried) in named.items()]
    more = _measured(runs)
    rows = [dataclasses.replace(row, **more.get(_contender(named[row.name][0]), {})) for row in rows]
    return [Group(row, _mixer(named[row.name][0]), named[row.name][0]) for row in ranked(rows)]


def _key(recipe: Recipe) -> str:
    """The same for runs that are compared as one."""
    own = ("output", "seed", *[CHOSEN] * bool(recipe.test_rows))
    return json.dumps({name: value for name, value in dataclasses.asdict(recipe).items() if name not in own})


def _with_best_rate(runs: list[SavedRun]) -> tuple[list[SavedRun], dict[float, float]]:
    """Those with the best rate of the first seed, and the validation losses of the rates if there are several."""
    recipes = [_recipe_of([run]) for run in runs]
    first = min(recipe.seed for recipe in recipes)
    rates = {recipe.learning_rate for recipe in recipes}
    tried = {
        recipe.learning_rate: run.validation_loss
        for run, recipe in zip(runs, recipes, strict=True)
        if recipe.seed == first and run.finished and run.validation_loss is not None
    }
    best = best_rate(tried) if tried else recipes[0].learning_rate
    own = [run for run, recipe in zip(runs, recipes, strict=True) if recipe.learning_rate == best]
    return own, tried if len(rates) > 1 else {}


def comparisons(runs: Sequence[SavedRun]) -> dict[Path, dict[str, Any]]:
    """What `maclaurin compare` keeps beside its runs, by folder; one that cannot be read is left out."""
    found = {}
    for folder in sorted({run.folder.parent for run in runs}):
        with suppress(OSError, ValueError):
            found[folder] = cast(dict[str, Any], read_json(folder / "compare.json"))
    return found


def _measured(runs: Sequence[SavedRun]) -> dict[tuple[Path, str], dict[str, Any]]:
    """Recall and costs by the folder of the comparison and the contender."""
    found: dict[tuple[Path, str], dict[str, Any]] = {}
    for folder, comparison in comparisons(runs).items():
        try:
            with naming("compare.json"):
                for row in comparison.get("rows", []):
                    recall = None if row.get("recall") is None else Recall.from_json(row["recall"]).checked()
                    quartiles = [_number(one) for one in row.get("decode_quartiles") or ()]
                    found[folder, str(row["name"])] = {
                        "recall": recall,
                        "decode_ms": _number(row.get("decode_ms")),
                        "decode_quartiles": tuple(quartiles) if len(quartiles) == 2 and None not in quartiles else None,
                    }
        except ValueError:
            continue  # of another version
    return found


def differences(groups: Sequence[Group]) -> list[str]:
    """The fields of the recipe in which groups differ, but which a fair comparison has in common."""
    judged = all(group.recipe.test_rows for group in groups)
    fair = (*OWN, *HOUSEKEEPING, *[CHOSEN] * judged)
    return [name for name in _varying([group.recipe for group in groups]) if name not in fair]


def mixer_label(recipe: Recipe) -> str:
    """The name of the contender of `maclaurin compare`, or the mixers of its layers."""
    names = recipe.mixer.split(",")
    period = next(n for n in range(1, len(names) + 1) if names[:n] * (len(names) // n) == names)
    own = names[:period]
    label = name_of(own, {name: named_options(recipe.options(), name) for name in own})
    return f"{label} ×{len(names) // period}" if len(names) > period > 1 else label


def _names(recipes: Sequence[Recipe]) -> list[str]:
    """Groups of the same mixer are named by the fields in which they differ; by housekeeping, and by what usually follows
    from other fields, only if by nothing else.
    """
    follows = ("intermediate_size", "warmup_steps")
    short = [_name(recipe, recipes, ("output", "seed", *follows, *HOUSEKEEPING)) for recipe in recipes]
    if len(set(short)) == len(short):
        return short
    return [_name(recipe, recipes, ("output", "seed")) for recipe in recipes]


def _name(recipe: Recipe, all_recipes: Sequence[Recipe], without: Sequence[str]) -> str:
    label = mixer_label(recipe)
    fields = _varying([other for other in all_recipes if mixer_label(other) == label])
    values = ", ".join(f"{name} {getattr(recipe, name)}" for name in fields if name not in without)
    return f"{label} ({values})" if values else label


def _varying(recipes: Sequence[Recipe]) -> list[str]:
    names = [entry.name for entry in dataclasses.fields(Recipe)]
    return [name for name in names if len({str(getattr(recipe, name)) for recipe in recipes}) > 1]


def _recipe_of(runs: Sequence[SavedRun]) -> Recipe:
    """Of runs that differ in nothing but the seed."""
    recipe = runs[0].recipe
    assert recipe is not None
    return recipe


def _mixer(runs: Sequence[SavedRun]) -> str:
    return mixer_label(_recipe_of(runs))


def _contender(runs: Sequence[SavedRun]) -> tuple[Path, str]:
    """Whose recall and costs are those of the runs, if they are of a comparison."""
    return runs[0].folder.parent, _mixer(runs)


def _figures(runs: Sequence[SavedRun], tested: bool) -> list[Figures]:
    """Of those that are finished."""
    found = []
    for run in runs:
        loss = run.loss if tested else run.validation_loss
        if run.finished and loss is not None and run.recipe is not None:
            speed, peak, load = (_number(run.result.get(name)) for name in ("tokens_per_second", "peak_bytes", "load"))
            found.append(Figures(loss, speed, peak, load, run.recipe.seed))
    return found


def _read(folder: Path) -> SavedRun:
    if not (folder / "recipe.json").is_file():
        return SavedRun(folder, problem="recipe.json is missing")
    try:
        with naming("recipe.json"):
            recipe = _recipe(folder)
    except ValueError as error:
        return SavedRun(folder, problem=str(error).replace("cannot be read", "cannot be used", 1))
    if not (folder / "log.jsonl").is_file():
        return SavedRun(folder, recipe, problem="log.jsonl is missing")
    try:
        with naming("log.jsonl"):
            entries = _entries(folder / "log.jsonl")
    except ValueError as error:
        return SavedRun(folder, recipe, problem=str(error))
    try:
        with naming("versions.json"):
            starts = load_provenance(folder)
    except ValueError as error:
        return SavedRun(folder, recipe, problem=str(error))
    return SavedRun(
        folder,
        recipe,
        _points(entries, "loss"),
        _points(entries, "eval_loss"),
        _points(entries, "test_loss"),
        _result(folder, recipe, entries, starts),
        starts,
    )


def _recipe(folder: Path) -> Recipe:
    """Whose layers can be built."""
    recipe = Recipe.load(folder)
    layers(recipe)
    return recipe


def _entries(path: Path) -> list[dict[str, Any]]:
    entries = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off in the middle, being written just now, or no line of a log
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _points(entries: Sequence[dict[str, Any]], key: str) -> Points:
    """By step; a later line of the same step replaces the earlier one. A loss that is not a number cannot be plotted."""
    points: dict[int, float] = {}
    for entry in entries:
        step, loss = _number(entry.get("step")), _number(entry.get(key))
        if step is not None and loss is not None:
            points[int(step)] = loss
    return sorted(points.items())


def _result(
    folder: Path, recipe: Recipe, entries: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What `maclaurin compare` measured from outside, or else what the log knows."""
    try:
        return cast(dict[str, Any], read_json(folder / "result.json"))
    except (OSError, ValueError):
        pass  # a run of `maclaurin train` has none
    seconds = next(
        (value for entry in reversed(entries) if (value := _number(entry.get("train_runtime"))) is not None), None
    )
    if seconds and len(starts) == 1:  # a resumed run has been timed for its last part only
        return {"tokens_per_second": recipe.steps * recipe.tokens_per_step / seconds, "seconds": seconds}
    return {}


def _number(value: Any) -> float | None:
    """None unless finite and of a plausible size: others would break the arithmetic of all runs."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return value
