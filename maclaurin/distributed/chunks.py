"""Long sequences in one process: slices one after the other, in the memory of one of them.

The forward keeps nothing but the states at the borders. Then the slices are computed again, the last one first, each
from the state before it: its backward gives the gradient of that state, with which the slice before goes on. Gradients
are those of the whole sequence; the work is that of one forward more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from maclaurin.distributed.slices import even_bounds, slices_of
from maclaurin.distributed.states import rebuilt
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.handover import handing_over

States = dict[Mixer, MixerState]
Gradients = dict[Mixer, dict[str, Tensor]]


class Borders:
    """The states before a slice, and those that its mixers leave."""

    def __init__(self, before: States) -> None:
        self.before, self.after = before, States()

    def receive(self, mixer: Mixer, x: Tensor, cu_seqlens: Any) -> tuple[Tensor, MixerState | None, Any]:
        return x, self.before.get(mixer), cu_seqlens

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        self.after.setdefault(mixer, state)  # a checkpointed layer comes here again in its backward
        return y


def backward_in_chunks(
    model: nn.Module, batch: Mapping[str, Any], chunks: int, *, num_items: Tensor | int | None = None, factor: float = 1.0
) -> Tensor:
    """The loss of a language model over a batch of so many slices in time; its gradients, times `factor`, are added to those
    of the parameters.

    batch: as in `slice_of`. num_items: by which the sum over tokens is divided, the number of labels if not given.
    """
    slices = slices_of(batch, even_bounds(batch["input_ids"].shape[1], chunks))
    num_items = _labels(slices) if num_items is None else num_items
    borders: list[States] = [{}]
    with torch.no_grad():
        for one in slices[:-1]:
            borders.append(_run(model, one, borders[-1], num_items)[1])
    losses, later = [], Gradients()
    for one, border in zip(reversed(slices), reversed(borders), strict=True):
        before = {mixer: _leaves(state) for mixer, state in border.items()}
        loss, after = _run(model, one, before, num_items)
        _backward(loss * factor, after, later)
        later = {mixer: _gradients(state) for mixer, state in before.items()}
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@torch.no_grad()
def loss_in_chunks(
    model: nn.Module, batch: Mapping[str, Any], chunks: int, *, num_items: Tensor | int | None = None
) -> Tensor:
    """The same loss without gradients: of an evaluation, in the memory of a slice too."""
    slices = slices_of(batch, even_bounds(batch["input_ids"].shape[1], chunks))
    num_items = _labels(slices) if num_items is None else num_items
    losses, before = [], States()
    for one in slices:
        loss, before = _run(model, one, before, num_items)
        losses.append(loss)
    return torch.stack(losses).sum()


def _labels(slices: Sequence[Mapping[str, Tensor]]) -> Tensor:
    return torch.stack([(one["shift_labels"] != -100).sum() for one in slices]).sum()


def _run(model: nn.Module, inputs: dict[str, Tensor], before: States, num_items: Any) -> tuple[Tensor, States]:
    borders = Borders(before)
    with handing_over(borders):
        loss = model(**inputs, num_items_in_batch=num_items, logits_to_keep=1, use_cache=False).loss
    return loss, borders.after


def _leaves(state: MixerState) -> MixerState:
    tensors = {name: tensor.detach().requires_grad_(tensor.is_floating_point()) for name, tensor in state.tensors().items()}
    return cast(MixerState, rebuilt(state, tensors))


def _gradients(state: MixerState) -> dict[str, Tensor]:
    return {name: tensor.grad for name, tensor in state.tensors().items() if tensor.grad is not None}


def _backward(loss: Tensor, after: States, later: Gradients) -> None:
    """Of the loss of a slice, and of what later slices make of the states that it leaves."""
    outputs, gradients = [loss], [torch.ones_like(loss)]
    for mixer, wanted in later.items():
        tensors = after[mixer].tensors()
        for name, gradient in wanted.items():
            if tensors[name].requires_grad:
                outputs.append(tensors[name])
                gradients.append(gradient)
    torch.autograd.backward(outputs, gradients)
