"""Which layers a conversion should leave alone: those that cost most when they are replaced, measured after their transfer.

The cost of a layer is KL(source ‖ source with this layer's student) of the next token on validation text. Everything below
the layer is the source's, so the model begins with the layer, at the states that the source had there.
"""

# B batch, T time, D channels of the model

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.common.files import read_json, write_json
from maclaurin.convert.data import Batch
from maclaurin.convert.objectives import divergence
from maclaurin.convert.teacher_student import TracedTeacher, mixing_layers

COSTS = "sensitivity.json"


def costliest(costs: dict[int, float], count: int) -> list[int]:
    """The layers with the largest costs, in their order; of equal ones the first."""
    return sorted(sorted(costs, key=lambda layer: (-costs[layer], layer))[:count])


def layer_costs(
    folder: Path, traced: TracedTeacher, student: PreTrainedModel, batches: Sequence[Batch], note: Callable[[int], None]
) -> dict[int, float]:
    """KL by layer, stored after every layer, so that an interrupted measurement goes on."""
    known: dict[str, float] = read_json(folder / COSTS) if (folder / COSTS).exists() else {}
    begins = None
    for layer in range(traced.model.config.num_hidden_layers):
        if str(layer) in known:
            continue
        if begins is None:
            begins = [_layer_inputs(traced.model, batch["input_ids"]) for batch in batches]
        note(layer)
        known[str(layer)] = _cost(traced.model, student, layer, begins)
        write_json(folder / COSTS, known)
    return {int(layer): cost for layer, cost in known.items()}


@torch.no_grad()
def _layer_inputs(model: PreTrainedModel, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """What every block gets (B,T,D), and the logits."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])

    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in model.base_model.layers]
    try:
        logits: Tensor = model(input_ids=ids.to(model.device), use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return found, logits


@torch.no_grad()
def _cost(
    model: PreTrainedModel, student: PreTrainedModel, layer: int, begins: Sequence[tuple[list[Tensor], Tensor]]
) -> float:
    costs = []
    with _replaced(model, student, layer), _beginning_at(model, layer):
        for inputs, wanted in begins:
            got = model(inputs_embeds=inputs[layer], use_cache=False).logits
            costs.append(divergence(got, wanted).item())
    return sum(costs) / len(costs)


@contextmanager
def _replaced(model: PreTrainedModel, student: PreTrainedModel, layer: int) -> Iterator[None]:
    """With the student's attention in one layer."""
    inside, other = mixing_layers(model)[layer], mixing_layers(student)[layer]
    softmax = inside.student
    inside.student = other.student
    try:
        yield
    finally:
        inside.student = softmax


@contextmanager
def _beginning_at(model: PreTrainedModel, layer: int) -> Iterator[None]:
    """Without the blocks below."""
    base = model.base_model
    blocks = base.layers
    base.layers = blocks[layer:]
    try:
        yield
    finally:
        base.layers = blocks
