"""Sizes of the model of a recipe, from its mixers built on the meta device."""

from __future__ import annotations

from collections import Counter

import torch

from maclaurin.mixers import build_mixer
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.overview import crossover_length
from maclaurin.training.recipe import Recipe

Layers = list[tuple[Mixer, int]]  # each kind of layer, and how many of it


def layers(recipe: Recipe, device: str = "meta") -> Layers:
    config = recipe.config()
    with torch.device(device):
        return [
            (build_mixer(name, config.hidden_size, config.num_attention_heads, **config.options_of(name)), count)
            for name, count in Counter(config.layer_mixers()).items()
        ]


def parameters(recipe: Recipe) -> int:
    """The parameters of mixers and MLPs, which `maclaurin compare` matches; embeddings and norms are the same for all."""
    config = recipe.config()
    mlps = 3 * config.hidden_size * config.intermediate_size * config.num_hidden_layers
    return mlps + sum(count * sum(parameter.numel() for parameter in mixer.parameters()) for mixer, count in layers(recipe))


def matched_width(width: int, excess: int, one_wider: int) -> int:
    """The width of the MLPs that removes `excess` parameters, if one unit of width has `one_wider`; below 1 if none can."""
    return width - round(excess / one_wider)


def state_nbytes(model: Layers, length: int) -> int:
    """Bytes of state of one sequence in the whole model."""
    return sum(count * mixer.state_nbytes(length) for mixer, count in model)


def crossover(model: Layers) -> int | None:
    """From which length on the state is no larger than softmax's; None if never, or if layers differ."""
    return crossover_length(model[0][0]) if len(model) == 1 else None
