"""A language model as stages of a pipeline: some of its layers on each process, for `torch.distributed.pipelining`.

    stage = PipelineStage(stage_of(model, rank, count), rank, count, device)
    schedule = Schedule1F1B(stage, n_microbatches, loss_fn=next_token_loss)
    schedule.step(ids) on the first process, schedule.step(target=ids) on the last, schedule.step() on the others

Batches with padding or packed documents: all processes give attention_mask and seq_idx to `step`, of which each takes the
microbatches apart, and the last one `targets_of(ids, …)`. Parts of a batch have different numbers of labels then: with
scale_grads=False and loss_kwargs={"num_items": n} the loss is the mean over all n.

Parameters have the names that they have in the model, so that the stages' state_dicts together are that of the model.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.models.decoder import MaclaurinForCausalLM, padding_of, predicted
from maclaurin.models.documents import document_bounds
from maclaurin.ops.transforms import has_numbers


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

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
        """attention_mask and seq_idx (batch, time) as in `MaclaurinModel`."""
        B, T = x.shape[:2]
        if not has_numbers(x):  # PyTorch asks for shapes alone, which do not depend on them
            attention_mask = seq_idx = None
        padding = padding_of(attention_mask, T)
        bounds = document_bounds((B, T), padding, seq_idx=seq_idx)
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        if bounds is not None:
            x, padding = x.flatten(0, 1)[None], None
        for layer in self.model.layers.values():
            x, _ = layer(x, None, False, padding, bounds, "auto")
        x = x.reshape(B, T, -1)
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


def targets_of(labels: Tensor, attention_mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
    """The labels (batch, time), −100 at padding and where a document begins, which no token before predicts."""
    padding = padding_of(attention_mask, labels.shape[1])
    size = (labels.shape[0], labels.shape[1])
    return predicted(labels, padding, document_bounds(size, padding, seq_idx=seq_idx))


def next_token_loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """The sum over all labels but the first of each sequence and those of −100, divided by num_items or else by how many
    there are, as the model has it."""
    targets = labels[:, 1:].flatten()
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
    return total / ((targets != -100).sum().clamp(min=1) if num_items is None else num_items)
