"""What an engine needs of a model: prompts read from the states before them, and a step of all sequences that run.

Sequences that run have a row each, in the order in which they were put; a row that leaves is replaced by the last one.
`SlotBatch` is that of models of this package; `converted.py` has those of converted ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maclaurin.mixers import MixerState
from maclaurin.models import MaclaurinForCausalLM, StateCache
from maclaurin.ops.products import of_layer
from maclaurin.serving.slots import known, slots_of

States = list[Any]  # of all layers; None where no token was read
BATCH_COST = 128  # tokens: what a batch costs beside its tokens


class Batch(ABC):
    """model: in evaluation mode. layers: those with a state. capacity: how many rows there may be."""

    layers: int

    def __init__(self, model: Any, capacity: int) -> None:
        self.model, self.capacity = model, capacity

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.vocab_size
        return size

    def read(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        """Logits behind the last token of every sequence (N, vocabulary), and the states there.

        before: states of the same parts and sizes. starts: how many tokens are in them.
        """
        logits: list[Any] = [None] * len(tokens)
        after: list[States] = [[]] * len(tokens)
        for places in in_buckets([len(one) for one in tokens]):
            found = self._read_padded(
                [tokens[place] for place in places], [before[place] for place in places], [starts[place] for place in places]
            )
            for place, *of_one in zip(places, *found, strict=True):
                logits[place], after[place] = of_one
        return torch.stack(logits), after

    @abstractmethod
    def _read_padded(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        """Sequences of similar length, the longest first, padded on the right to its length."""

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


def joined(states: Sequence[MixerState | None]) -> MixerState | None:
    """Of several sequences, which often go on from one state that they share."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if all(state is first for state in states):
        return first.select([0] * len(states))
    return MixerState.cat([state for state in states if state is not None])


def apart(states: States, count: int) -> list[States]:
    """Of each sequence, in the memory of all of them."""
    return [[state.row(row).trimmed() for state in states] for row in range(count)]


def in_buckets(lengths: list[int]) -> list[list[int]]:
    """The places of sequences, the longest first, in batches whose padding costs less than another batch would."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    cheapest = [(0, 0)]  # of the first so many: what they cost, and where their last batch begins
    for end in range(1, len(order) + 1):
        ways = ((cheapest[begin][0] + BATCH_COST + (end - begin) * lengths[order[begin]], begin) for begin in range(end))
        cheapest.append(min(ways))
    found, end = [], len(order)
    while end:
        begin = cheapest[end][1]
        found.append(order[begin:end])
        end = begin
    return found[::-1]


class SlotBatch(Batch):
    """Each layer has its rows in slots that a step writes in place; mixers count positions themselves."""

    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._layers: Any = model.model.layers
        self.layers = len(self._layers)
        self._slots = [slots_of(layer.mixer, capacity) for layer in self._layers]

    def _read_padded(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        longest = len(tokens[0])
        counts = torch.tensor([len(one) for one in tokens], dtype=torch.long, device=self.model.device)
        lengths = None if len(tokens[-1]) == longest else counts
        states: States = []

        def attend(index: int, x: Tensor) -> Tensor:
            mixer, state = self._layers[index].mixer, joined([one[index] for one in before])
            y, after = mixer(x, state if state is None else known(state, mixer.trust), lengths=lengths)
            states.append(after)
            return y

        last = (torch.arange(len(tokens), dtype=torch.long, device=counts.device), counts - 1)
        logits = self._through([one + [0] * (longest - len(one)) for one in tokens], attend, last)
        return logits, [states] if len(tokens) == 1 else apart(states, len(tokens))

    def _through(self, tokens: list[list[int]], attend: Callable[[int, Tensor], Tensor], last: Any) -> Tensor:
        """The logits at `last`, slots of the batch. attend: what the mixer of a layer gives."""
        model = self.model.model
        hidden = model.embed_tokens(self.ids(tokens))
        for index, layer in enumerate(self._layers):
            hidden = hidden + attend(index, layer.input_layernorm(hidden))
            if index == self.layers - 1:
                hidden = hidden[last]  # nobody reads the others any more
            if layer.mlp is not None:
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return of_layer(self.model.lm_head, model.norm(hidden))

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
