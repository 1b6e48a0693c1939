"""A language model as stages of a pipeline: some of its layers on each process, for `torch.distributed.pipelining`.

    stage = PipelineStage(stage_of(model, rank, count), rank, count, device)
    schedule = Schedule1F1B(stage, n_microbatches, loss_fn=next_token_loss)
    schedule.step(ids) on the first process, schedule.step(target=ids) on the last, schedule.step() on the others

Parameters have the names that they have in the model, so that the stages' state_dicts together are that of the model.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.models.decoder import MaclaurinForCausalLM


class Layers(nn.Module):
    """Some layers, by their number in the model."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.embed_tokens: nn.Module | None = None
        self.layers = nn.ModuleDict(layers)
        self.norm: nn.Module | None = None


class Stage(nn.Module):
    """ids (batch, time) or hidden states in, hidden states or logits out."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.model = Layers(layers)
        self.lm_head: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        for layer in self.model.layers.values():
            x, _ = layer(x, None, False, None, None, "auto")
        if self.lm_head is not None:
            assert self.model.norm is not None
            x = self.lm_head(self.model.norm(x))
        return x


def stage_of(model: MaclaurinForCausalLM, index: int, count: int) -> Stage:
    """Stage `index` of `count`, which differ by one layer at most. The modules are those of the model."""
    layers = list(model.model.layers)
    if not 0 <= index < count <= len(layers):
        raise ValueError(f"a model of {len(layers)} layers has as many stages at most, got stage {index} of {count}")
    if model.config.tie_word_embeddings and count > 1:
        raise ValueError("the first and the last stage cannot share their embeddings: tie_word_embeddings must be False")
    bounds = [len(layers) * number // count for number in range(count + 1)]
    own = range(bounds[index], bounds[index + 1])
    if model.model.lower_bounds is not None and count > 1:
        raise ValueError("stages cannot share the lower bounds of hgrn2: its option bounded must be False")
    stage = Stage({str(number): layers[number] for number in own})
    if index == 0:
        stage.model.embed_tokens = model.model.embed_tokens
    if index == count - 1:
        stage.model.norm, stage.lm_head = model.model.norm, model.lm_head
    return stage


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over all tokens but the first of each sequence, as the model has it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
