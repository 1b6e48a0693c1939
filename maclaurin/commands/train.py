"""`maclaurin train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from maclaurin.commands.output import Json, print_json, talk
from maclaurin.commands.recipe import takes_recipe


@takes_recipe()
def train(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML file with the same names as the flags.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in --output.")] = False,
    as_json: Json = False,
) -> None:
    """Train a language model: flags, or --config FILE.yaml with the same names; --resume continues a run.

    All other fields of transformers' TrainingArguments are flags too: --optim, --adam_beta2, --torch_compile, --fsdp, ...
    """
    from maclaurin.training.child import execute
    from maclaurin.training.configured import train_recipe

    recipe = train_recipe(given, config, resume=resume)
    with talk(as_json=as_json):
        result = execute(recipe, resume=resume)
    if as_json:
        print_json({"output": recipe.output, **dataclasses.asdict(result)})
