"""What an engine needs of a model: prompts read from the states before them, and a step of all sequences that run.

Sequences that run have a row each, in the order in which they were put; a row that leaves is replaced by the last one.
`SlotBatch` is that of models of this package; `converted.py` has those of converted ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from maclaurin.mixers import MixerState
from maclaurin.models import MaclaurinForCausalLM, StateCache
from maclaurin.ops.products import of_layer
from maclaurin.serving.between import Between
from maclaurin.serving.prompts import read_prompts
from maclaurin.serving.slots import slots_of

States = list[Any]  # of all layers; None where no token was read
# Prompts are filled up to a multiple: oneDNN takes as long to prepare products of a new size as to compute them.
ROUND = 32  # tokens


class Batch(ABC):
    """model: in evaluation mode. layers: those with a state. capacity: how many rows there may be."""

    layers: int

    def __init__(self, model: Any, capacity: int) -> None:
        self.model, self.capacity = model, capacity

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.vocab_size
        return size

    @abstractmethod
    def read(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        """Logits behind the last token of every sequence (N, vocabulary), and the states there.

        before: the states of every sequence. starts: how many tokens are in them.
        """

    @abstractmethod
    def put(self, states: States, length: int) -> None:
        """One more row, behind the others: the states of one sequence of so many tokens, copied."""

    @abstractmethod
    def drop(self, row: int) -> None:
        """The last row takes its place."""

    @abstractmethod
    def take(self, row: int) -> States:
        """The states of one row, copied."""

    @abstractmethod
    def step(self, tokens: list[int]) -> Tensor:
        """Logits (rows, vocabulary) behind one more token of every row."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Of the states of all rows."""

    @abstractmethod
    def state_nbytes(self, length: int) -> int:
        """Of the states of one sequence of so many tokens."""

    @abstractmethod
    def shapes(self) -> Sequence[MixerState]:
        """States of all layers to compare others with."""

    def check(self, state: StateCache) -> None:
        """A state that is given to a request must be one of this model."""
        if not isinstance(state, StateCache) or len(state.layers) != self.layers or state.batch_size != 1:
            raise ValueError(f"state must be a StateCache of one sequence and {self.layers} layers")
        for shapes, held in zip(self.shapes(), state.layers, strict=True):
            if held.state is None:
                raise ValueError("state must hold the state of every layer")
            held.state.check(like=shapes)

    def ids(self, tokens: list[list[int]]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self.model.device)


def batch_of(model: Any, capacity: int) -> Batch:
    if isinstance(model, MaclaurinForCausalLM):
        return SlotBatch(model, capacity)
    if str(model.config.model_type).startswith("maclaurin-") and model.can_generate():
        from maclaurin.serving.converted import converted_batch  # imports every family of transformers that is converted

        return converted_batch(model, capacity)
    raise ValueError(
        f"model must be a language model of this package or a decoder that `maclaurin convert` made, got a "
        f"{type(model).__name__}"
    )


class SlotBatch(Batch):
    """Each layer has its rows in slots that a step writes in place; mixers count positions themselves."""

    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._layers: Any = model.model.layers
        self.layers = len(self._layers)
        self._slots = [slots_of(layer.mixer, capacity) for layer in self._layers]
        norms = [*(layer.input_layernorm for layer in self._layers[1:]), model.model.norm]
        self._between = [Between(layer, norm) for layer, norm in zip(self._layers, norms, strict=True)]

    def read(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        lengths = [len(one) for one in tokens]
        rest = -sum(lengths) % ROUND if sum(lengths) > ROUND else 0
        after: list[States] = []

        def attend(index: int, x: Tensor) -> Tensor:
            y, states = read_prompts(self._layers[index].mixer, x, [one[index] for one in before], lengths)
            after.append(states)
            return y

        last = torch.tensor(lengths, dtype=torch.long, device=self.model.device).cumsum(0) - 1
        logits = self._through([[*chain(*tokens), *[0] * rest]], attend, (0, last))
        return logits, [list(states) for states in zip(*after, strict=True)]

    def _through(self, tokens: list[list[int]], attend: Callable[[int, Tensor], Tensor], last: Any) -> Tensor:
        """The logits at `last`, slots of the batch. attend: what the mixer of a layer gives."""
        hidden = self.model.model.embed_tokens(self.ids(tokens))
        normed = self._layers[0].input_layernorm(hidden)
        for index, between in enumerate(self._between):
            mixed = attend(index, normed)
            if index == self.layers - 1:
                hidden, mixed = hidden[last][:, None], mixed[last][:, None]  # nobody reads the others any more
            hidden, normed = between(hidden, mixed)
        return of_layer(self.model.lm_head, normed[:, 0])

    def put(self, states: States, length: int) -> None:
        for slots, state in zip(self._slots, states, strict=True):
            slots.put(state)

    def drop(self, row: int) -> None:
        for slots in self._slots:
            slots.drop(row)

    def take(self, row: int) -> States:
        return [slots.take(row) for slots in self._slots]

    def step(self, tokens: list[int]) -> Tensor:
        last = (slice(None), -1)
        return self._through([[token] for token in tokens], lambda index, x: self._slots[index].step(x), last)

    @property
    def nbytes(self) -> int:
        return sum(slots.nbytes for slots in self._slots)

    def state_nbytes(self, length: int) -> int:
        return sum(layer.mixer.state_nbytes(length) for layer in self._layers)

    def shapes(self) -> Sequence[MixerState]:
        return [layer.mixer.shapes() for layer in self._layers]
