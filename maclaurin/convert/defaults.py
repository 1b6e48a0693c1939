"""What a conversion takes where nothing is said: the defaults of `Plan` are those of encoders, these of other sources.

A model of `maclaurin train` is converted with the text, the rows and a fifth of the steps that it was trained with, and at
rates that follow its own. It is far from the end of what it can learn, so transfer may move its projections too, and the
text itself is the better teacher. Measured in docs/convert.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maclaurin.convert.sources import Source
from maclaurin.training.recipe import Recipe

DECODER = {"max_length": 256, "batch_size": 8, "eval_rows": 128}
OWN = DECODER | {"train_projections": True, "map_rate": 10.0, "loss": "task"}
SHARE = 10  # of the training steps, one in so many goes into each stage


def defaults(source: Source) -> dict[str, Any]:
    """Fields of a `Plan`."""
    if source.kind == "maclaurin":
        return OWN | (_of_recipe(source.path) if (source.path / "recipe.json").is_file() else {})
    return DECODER if source.causal else {}


def _of_recipe(folder: Path) -> dict[str, Any]:
    recipe = Recipe.load(folder)
    steps = max(1, recipe.steps // SHARE)
    return {
        "corpus": recipe.corpus,
        "text_field": recipe.text_field,
        "max_length": recipe.length,
        "batch_size": recipe.batch_size * recipe.accumulation,
        "transfer_steps": steps,
        "transfer_rate": 10 * recipe.learning_rate,
        "recover_steps": steps,
        "recover_rate": recipe.learning_rate / 3,
    }
