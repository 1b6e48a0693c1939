"""A recipe from the fields that are given, over those of a YAML file, over those of the run that is resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from maclaurin.training.contenders import BUDGET
from maclaurin.training.recipe import Recipe, checked

LARGEST_CONFIG = 2**20  # bytes


def train_recipe(given: dict[str, Any], config: Path | None = None, *, resume: bool = False) -> Recipe:
    """The recipe of `maclaurin train`: with `resume` that of the run, in which given fields may change (more steps, say)."""
    values = _configured(config) | given
    output = Path(values.get("output", Recipe.output))
    if resume and (output / "recipe.json").exists():
        values = dataclasses.asdict(Recipe.load(output)) | {"output": str(output)} | values
    return Recipe(**values)


def compare_recipe(given: dict[str, Any], config: Path | None = None) -> Recipe:
    """The recipe that all runs of `maclaurin compare` share."""
    return Recipe(**BUDGET | _configured(config) | given)


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
        _check_flat(text)
        values = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{where} cannot be read: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{where} must have one name and value per line, got {type(values).__name__}")
    numbers = {name: value for name, value in values.items() if isinstance(value, str) and _is_float(name)}
    return checked(values | {name: _as_float(value) for name, value in numbers.items()}, where)


def _check_flat(text: str) -> None:
    """A few lines of aliases of aliases stand for gigabytes, and brackets in brackets for minutes."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 2 or isinstance(event, yaml.AliasEvent):
            raise ValueError(f"line {event.start_mark.line + 1} has an alias or is nested; a recipe is names and values")


def _is_float(name: Any) -> bool:
    return any(field.name == name and field.type in (float, "float") for field in dataclasses.fields(Recipe))


def _as_float(text: str) -> Any:
    """YAML reads 1e-3 as a string."""
    try:
        return float(text)
    except ValueError:
        return text
