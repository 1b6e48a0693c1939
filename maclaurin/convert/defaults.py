"""The settings of a conversion that follow from its source, unless others are given.

A model of `maclaurin train` is converted with the text, the batches and a fifth of the steps of its training, and at
learning rates relative to its own. It is undertrained, so transfer trains its projections too, and the loss on the text
works better than distillation. A decoder of transformers reads whole contexts, one sequence a step, with a window beside its
students. Measured in docs/convert.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maclaurin.convert.sources import Source
from maclaurin.machine.bfloat16 import has_bf16
from maclaurin.models.linearised.classes import shape_of
from maclaurin.training.conversion import DECODER, LONGEST, OWN
from maclaurin.training.recipe import Recipe

SHARE = 10  # a stage has the steps of training divided by this


def defaults(source: Source) -> dict[str, Any]:
    """Fields of a `Plan`."""
    if source.kind == "maclaurin":
        return OWN | (_of_recipe(source.path) if (source.path / "recipe.json").is_file() else {})
    return _of_decoder(source) if source.causal else {}


def _of_decoder(source: Source) -> dict[str, Any]:
    return DECODER | {
        "max_length": min(LONGEST, source.config.max_position_embeddings),
        "num_features": 2 * shape_of(source.config).head_dim,
        "precision": "bf16" if has_bf16() else "fp32",
    }


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
