"""A recipe from the fields that are given, over those of a YAML file, over those of the run that is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from maclaurin.common.arguments import one_of
from maclaurin.training.budgets import BUDGETS, DEFAULT
from maclaurin.training.checkpoints import Resume, goes_on
from maclaurin.training.names import ALIASES, resolved, trainer_fields
from maclaurin.training.recipe import FREE_SIZES, Recipe, checked

LARGEST_CONFIG = 2**20  # bytes


DEEPEST = 4  # a mapping of options by mixer, one of which is a list


def train_recipe(given: dict[str, Any], config: Path | None = None, *, resume: Resume = False) -> Recipe:
    """The recipe of `maclaurin train`: with `resume` that of the run, in which given fields may change (more steps, say)."""
    values = _merged(_configured(config), _named(given))
    output = Path(values.get("output", Recipe.output))
    if goes_on(output, resume) and (output / "recipe.json").exists():
        values = _merged(dataclasses.asdict(Recipe.load(output)), {"output": str(output)}, values)
    return Recipe(**values)


def compare_recipe(
    given: dict[str, Any],
    config: Path | None = None,
    *,
    budget: str = DEFAULT,
    learning_rates: Sequence[float] = (),
) -> tuple[Recipe, tuple[float, ...]]:
    """The recipe that all runs of `maclaurin compare` share but for the learning rate, and the rates that are tried: those
    given, or the one of the recipe if it has one, or those of the budget.
    """
    one_of("budget", budget, tuple(BUDGETS))
    values = _merged(_configured(config), _named(given))
    for name in ("mixer", "mixer_options"):
        if name in values:
            raise ValueError(f"a comparison must not have {name}: its contenders are --mixers, with their options")
    if learning_rates and "learning_rate" in values:
        raise ValueError("give learning_rate or learning_rates, not both")
    own = BUDGETS[budget]
    fields = {name: value for name, value in own.recipe.items() if not ("size" in values and name in FREE_SIZES)}
    rates = tuple(learning_rates) or ((values["learning_rate"],) if "learning_rate" in values else own.learning_rates)
    if "steps" in values:  # the warm-up and the evaluations follow
        for name in ("warmup_steps", "eval_every"):
            fields[name] = fields[name] * max(values["steps"], 0) // own.recipe["steps"]
    return Recipe(**_merged(fields, {"learning_rate": rates[0]}, values)), rates


def _named(given: dict[str, Any]) -> dict[str, Any]:
    return resolved(given, get_type_hints(Recipe), "the command")


def _merged(*sources: dict[str, Any]) -> dict[str, Any]:
    """Later ones win; fields of the trainer, which are a dict of their own, one by one."""
    values: dict[str, Any] = {}
    for source in sources:
        trainer = values.get("trainer", {}) | source.get("trainer", {})
        values |= source | ({"trainer": trainer} if trainer else {})
    return values


def _configured(config: Path | None) -> dict[str, Any]:
    return {} if config is None else _from_yaml(config)


def _from_yaml(path: Path) -> dict[str, Any]:
    where = f"config {str(path)!r}"
    if not path.is_file():
        raise ValueError(f"{where} is no file here")
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{where} has {path.stat().st_size:,} bytes: a recipe has at most {LARGEST_CONFIG:,}")
    try:
        text = path.read_text(encoding="utf-8")
        _check_nesting(text)
        values = yaml.load(text, _UniqueKeys) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where} is no YAML, {place}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{where} must have one name and value per line, got {type(values).__name__}")
    numbers = {name: value for name, value in values.items() if isinstance(value, str) and _is_float(name)}
    return checked(values | {name: _as_float(value) for name, value in numbers.items()}, where)


class _UniqueKeys(yaml.SafeLoader):
    """YAML says that keys are unique; its parser takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r:.40} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_nesting(text: str) -> None:
    """A few lines of aliases of aliases stand for gigabytes, and brackets in brackets for minutes."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        alias = isinstance(event, yaml.AliasEvent)
        if alias or depth > DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise yaml.YAMLError(f"line {line} {'has an alias' if alias else 'is nested too deeply'}: recipes are plain")


def _is_float(name: Any) -> bool:
    """Whether a field is a number and never a text, under any of its names."""
    name = ALIASES.get(name, name)
    kinds = trainer_fields().get(name, frozenset())
    return get_type_hints(Recipe).get(name) is float or (float in kinds and str not in kinds)


def _as_float(text: str) -> Any:
    """YAML reads 1e-3 as a string."""
    try:
        return float(text)
    except ValueError:
        return text
