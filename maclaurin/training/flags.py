"""The fields of a Recipe as flags, over those of a YAML file, over those of the run that is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from maclaurin.common.arguments import at_least_one
from maclaurin.training.compare import CONTENDERS
from maclaurin.training.recipe import Recipe, checked

LARGEST_CONFIG = 2**20  # bytes
# minutes on two cores, and the order of the mechanisms is visible
COMPARE_DEFAULTS: dict[str, Any] = {
    "output": "runs/compare",
    "length": 256,
    "batch_size": 8,
    "steps": 200,
    "warmup_steps": 20,
    "learning_rate": 3e-3,
    "eval_rows": 128,
    "eval_every": 50,
    "track": "none",
}


def parse(arguments: Sequence[str]) -> tuple[Recipe, bool]:
    """The recipe of `maclaurin train`, and whether to resume."""
    parser = _parser("train", "Train a language model.")
    parser.add_argument("--resume", action="store_true", help="Go on from the last checkpoint in --output.")
    first, _ = parser.parse_known_args(arguments)
    configured = _from_yaml(Path(first.config)) if first.config else {}
    parser.set_defaults(**configured)
    if first.resume:
        output = Path(parser.parse_args(arguments).output)
        if (output / "recipe.json").exists():
            # the run decides, what is given beside --resume may change it (more steps, say)
            parser.set_defaults(**dataclasses.asdict(Recipe.load(output)) | {"output": str(output)} | configured)
    values = vars(parser.parse_args(arguments))
    return _recipe(values), values["resume"]


def parse_compare(arguments: Sequence[str]) -> tuple[Recipe, list[str], int]:
    """The recipe that all runs of `maclaurin compare` share, the contenders, and how many seeds."""
    parser = _parser("compare", "Train contenders at an equal budget and compare them.")
    parser.add_argument("--mixers", default=",".join(CONTENDERS), help="Contenders, separated by commas.")
    parser.add_argument("--seeds", type=int, default=2, help="Seeds of each contender, from --seed on.")
    parser.set_defaults(**COMPARE_DEFAULTS)
    first, _ = parser.parse_known_args(arguments)
    if first.config:
        parser.set_defaults(**_from_yaml(Path(first.config)))
    values = vars(parser.parse_args(arguments))
    at_least_one("seeds", values["seeds"])
    return _recipe(values), values["mixers"].split(","), values["seeds"]


def _parser(command: str, description: str) -> Any:
    parser = HfArgumentParser(Recipe, prog=f"maclaurin {command}", description=description, allow_abbrev=False)
    parser.add_argument("--config", help="YAML file with the same names as the flags.")
    return parser


def _recipe(values: dict[str, Any]) -> Recipe:
    return Recipe(**{field.name: values[field.name] for field in dataclasses.fields(Recipe)})


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
        raise ValueError(f"{where} must have a name and a value a line, got {type(values).__name__}")
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
    """YAML reads 1e-3 as a text."""
    try:
        return float(text)
    except ValueError:
        return text
