"""`maclaurin train`: the fields of a Recipe as flags, over those of a YAML file, over those of the run that is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from maclaurin.training.recipe import Recipe


def parse(arguments: Sequence[str]) -> tuple[Recipe, bool]:
    """The recipe, and whether to resume."""
    parser = HfArgumentParser(Recipe, prog="maclaurin train", description="Train a language model.", allow_abbrev=False)
    parser.add_argument("--config", help="YAML file with the same names as the flags.")
    parser.add_argument("--resume", action="store_true", help="Go on from the last checkpoint in --output.")
    first, _ = parser.parse_known_args(arguments)
    if first.config:
        parser.set_defaults(**_from_yaml(Path(first.config)))
    if first.resume:
        output = Path(parser.parse_args(arguments).output)
        if (output / "recipe.json").exists():
            # the run decides, flags beside --resume may change it (more steps, say)
            parser.set_defaults(**dataclasses.asdict(Recipe.load(output)))
    values = vars(parser.parse_args(arguments))
    resume = values.pop("resume")
    values.pop("config")
    return Recipe(**values), resume


def _from_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"config {str(path)!r} is no file here")
    values = yaml.safe_load(path.read_text()) or {}
    known = {field.name for field in dataclasses.fields(Recipe)}
    if not isinstance(values, dict) or not known.issuperset(values):
        unknown = ", ".join(sorted(map(str, set(values) - known))) if isinstance(values, dict) else "no names at all"
        raise ValueError(f"config {str(path)!r} has {unknown}; it may have {', '.join(sorted(known))}")
    return values
