"""`maclaurin train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maclaurin.commands.lazy import ALONE
from maclaurin.commands.output import Json, print_json, talk
from maclaurin.commands.recipe import takes_recipe
from maclaurin.common.arguments import one_of

RESUME: dict[str | None, bool | Literal["auto"]] = {None: False, ALONE: True, "auto": "auto"}


@takes_recipe()
def train(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML file with the same names as the flags.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[auto]", help="Resume from the last checkpoint in --output; auto: or start where there is none."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a language model: flags, or --config FILE.yaml with the same names; --resume continues a run.

    All other fields of transformers' TrainingArguments are flags too: --optim, --adam_beta2, --torch_compile, ...
    """
    from maclaurin.training.child import execute
    from maclaurin.training.configured import train_recipe
    from maclaurin.training.ranks import rank

    one_of("resume", resume, tuple(RESUME))
    goes_on = RESUME[resume]
    recipe = train_recipe(given, config, resume=goes_on)
    with talk(as_json=as_json):
        result = execute(recipe, resume=goes_on)
    if as_json and not rank():
        print_json({"output": recipe.output, **dataclasses.asdict(result)})
