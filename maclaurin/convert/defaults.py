"""The settings of a conversion that follow from its source, unless others are given.

A model of `maclaurin train` is converted with the text, the batches and a fifth of the steps of its training, and at
learning rates relative to its own. It is undertrained, so transfer trains its projections too, and the loss on the text
works better than distillation. Measured in docs/convert.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maclaurin.convert.sources import Source
from maclaurin.training.conversion import DECODER, OWN
from maclaurin.training.recipe import Recipe

SHARE = 10  # a stage has the steps of training divided by this


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
