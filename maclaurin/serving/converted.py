"""The sequences of a converted model, whose layers are those of transformers: they are told the position of every token.

A step calls the whole model. Where every layer has its states in slots, it is one call for all rows; otherwise states of all
layers are joined beside those of sequences of similar length, and there is a call for each group of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from maclaurin.mixers import MixerState
from maclaurin.models import StateCache
from maclaurin.models.linearised.classes import attention_modules
from maclaurin.ops.states import LinearState
from maclaurin.serving.batch import Batch, States
from maclaurin.serving.slots import Groups, Places, scores_of

BATCH_COST = 128  # tokens: what a batch costs beside its tokens


def converted_batch(model: Any, capacity: int) -> Batch:
    places = [places_of(module, capacity, model) for module in attention_modules(model)]
    found = [one for one in places if one is not None]
    if len(found) == len(places):
        return ConvertedSlots(model, capacity, found)
    return ConvertedGroups(model, capacity)


def places_of(module: Any, capacity: int, model: Any) -> Places | None:
    """Slots for the states of an attention module's student; None where it keeps tokens that no kernel steps in rows."""
    window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None))  # Mistral's has no own
    mechanism = module.student.mechanism.within(window)
    kept = _state_of(module.student).attention
    scores = scores_of(mechanism, kept, next(model.parameters()))
    return None if scores is None and not isinstance(kept, LinearState) else Places(capacity, scores)


@torch.inference_mode()
def _state_of(student: Any) -> MixerState:
    state: MixerState = student.on_zeros(1, None, return_state=True)[1]
    return state


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


def in_buckets(tokens: list[list[int]], places: list[int]) -> list[list[int]]:
    """These sequences, the longest first, in batches whose padding costs less than another batch would."""
    order = sorted(places, key=lambda place: -len(tokens[place]))
    cheapest = [(0, 0)]  # of the first so many: what they cost, and where their last batch begins
    for end in range(1, len(order) + 1):
        ways = ((cheapest[begin][0] + BATCH_COST + (end - begin) * len(tokens[order[begin]]), begin) for begin in range(end))
        cheapest.append(min(ways))
    found, end = [], len(order)
    while end:
        begin = cheapest[end][1]
        found.append(order[begin:end])
        end = begin
    return found[::-1]


def kind_of(states: States) -> Any:
    """Sequences of one kind can be read together: nothing of their states has to be widened or made up."""
    held = [None if state is None else state.tensors() for state in states]
    return tuple(None if one is None else tuple((name, x.shape[1:]) for name, x in one.items()) for one in held)


class Converted(Batch):
    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._students: list[Any] = [module.student for module in attention_modules(model)]
        self.layers = len(self._students)
        self._lengths: list[int] = []  # of every row
        self._shapes: list[MixerState] = []

    def read(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        kinds: dict[Any, list[int]] = {}
        for place, states in enumerate(before):
            kinds.setdefault(kind_of(states), []).append(place)
        logits: list[Any] = [None] * len(tokens)
        after: list[States] = [[]] * len(tokens)
        for places in chain(*(in_buckets(tokens, one) for one in kinds.values())):
            found = self._read_padded(
                [tokens[place] for place in places], [before[place] for place in places], [starts[place] for place in places]
            )
            for place, *of_one in zip(places, *found, strict=True):
                logits[place], after[place] = of_one
        return torch.stack(logits), after

    def _read_padded(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        """Sequences of one kind and of similar length, the longest first, padded on the right to its length."""
        longest = len(tokens[0])
        counts = torch.tensor([len(one) for one in tokens], dtype=torch.long, device=self.model.device)
        slots = torch.arange(longest, dtype=torch.long, device=self.model.device)
        ids = self.ids([one + [0] * (longest - len(one)) for one in tokens])
        real = None if len(tokens[-1]) == longest else slots < counts[:, None]
        states = [joined(many) for many in zip(*before, strict=True)]
        logits, after = self._run(ids, states, starts, real, counts - 1)
        return logits, [after] if len(tokens) == 1 else apart(after, len(tokens))

    def _run(
        self, ids: Tensor, states: States, starts: list[int], real: Tensor | None, last: Tensor | int
    ) -> tuple[Tensor, States]:
        """Logits at the slot `last` of every sequence, and the states behind all tokens."""
        cache = StateCache.of(states, 0)
        slots = torch.arange(ids.shape[1], dtype=torch.long, device=ids.device)
        positions = torch.tensor(starts, dtype=torch.long, device=ids.device)[:, None] + slots
        hidden = self.model.base_model(
            input_ids=ids, attention_mask=real, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        rows = torch.arange(len(ids), dtype=torch.long, device=ids.device)
        logits: Tensor = self.model.get_output_embeddings()(hidden[rows, last])
        return logits, [layer.state for layer in cache.layers]

    def put(self, states: States, length: int) -> None:
        self._lengths.append(length)

    def drop(self, row: int) -> None:
        self._lengths[row] = self._lengths[-1]
        self._lengths.pop()

    def state_nbytes(self, length: int) -> int:
        """Of a run without numbers: what a layer keeps depends on its student, its window and the length."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            _, states = self._run(self.ids([[0] * length]), [None] * self.layers, [0], None, -1)
            return sum(state.nbytes for state in states)

    def shapes(self) -> Sequence[MixerState]:
        if not self._shapes:
            self._shapes = [_state_of(student) for student in self._students]
        return self._shapes


class ConvertedSlots(Converted):
    def __init__(self, model: Any, capacity: int, places: list[Places]) -> None:
        super().__init__(model, capacity)
        self._places = places

    def put(self, states: States, length: int) -> None:
        super().put(states, length)
        for places, state in zip(self._places, states, strict=True):
            places.put(state)

    def drop(self, row: int) -> None:
        super().drop(row)
        for places in self._places:
            places.drop(row)

    def take(self, row: int) -> States:
        return [places.take(row) for places in self._places]

    def step(self, tokens: list[int]) -> Tensor:
        states = [places.state for places in self._places]
        logits, after = self._run(self.ids([[token] for token in tokens]), states, self._lengths, None, -1)
        for places, state in zip(self._places, after, strict=True):
            places.write(state)
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    @property
    def nbytes(self) -> int:
        return sum(places.nbytes for places in self._places)


class ConvertedGroups(Converted):
    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._groups = Groups()

    def put(self, states: States, length: int) -> None:
        super().put(states, length)
        self._groups.put(states)

    def drop(self, row: int) -> None:
        super().drop(row)
        self._groups.drop(row)

    def take(self, row: int) -> States:
        return self._groups.take(row)

    def step(self, tokens: list[int]) -> Tensor:
        found: dict[int, Tensor] = {}

        def run(rows: list[int], states: list[MixerState]) -> States:
            ids = self.ids([[tokens[row]] for row in rows])
            logits, after = self._run(ids, states, [self._lengths[row] for row in rows], None, -1)
            found.update(zip(rows, logits, strict=True))
            return after

        self._groups.step(run)
        self._lengths = [length + 1 for length in self._lengths]
        return torch.stack([found[row] for row in range(len(tokens))])

    @property
    def nbytes(self) -> int:
        return self._groups.nbytes
