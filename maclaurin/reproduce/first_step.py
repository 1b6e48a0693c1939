"""The first step of a published recipe, without its memory: on the meta device, where tensors have shapes and no numbers.

The whole model is built; a sequence of the published length goes through one of its layers, since all are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from maclaurin.models import MaclaurinForCausalLM
from maclaurin.training.recipe import Recipe

VOCABULARY = 32000  # of the published tokenizer


@dataclass(frozen=True)
class FirstStep:
    parameters: int
    tokens: int


def first_step(recipe: Recipe) -> FirstStep:
    """Parameters, and tokens of a step; whatever does not fit is an error here and not on a cluster."""
    with torch.device("meta"):
        model = MaclaurinForCausalLM(recipe.config(vocab_size=VOCABULARY))
        layer = MaclaurinForCausalLM(replace(recipe, num_hidden_layers=1).config(vocab_size=VOCABULARY))
        ids = torch.zeros(1, recipe.length, dtype=torch.long, device="meta")
    logits = layer(ids, use_cache=False).logits
    expected = (1, recipe.length, VOCABULARY)
    if tuple(logits.shape) != expected:
        raise ValueError(f"{recipe.output} gives logits of shape {tuple(logits.shape)}, a step needs {expected}")
    return FirstStep(sum(parameter.numel() for parameter in model.parameters()), recipe.tokens_per_step)
