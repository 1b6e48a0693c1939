"""The sequences of a converted model: states of all layers, joined beside those of sequences of similar length.

Its layers are those of transformers, which are told the position of every token. A step calls the whole model once for each
group of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from maclaurin.mixers import MixerState
from maclaurin.models import StateCache
from maclaurin.models.linearised.classes import attention_modules
from maclaurin.serving.batch import Batch, States, apart, joined
from maclaurin.serving.slots import Groups


class ConvertedBatch(Batch):
    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._students: list[Any] = [module.student for module in attention_modules(model)]
        self.layers = len(self._students)
        self._groups = Groups()
        self._lengths: list[int] = []  # of every row
        self._shapes: list[MixerState] = []

    def read(self, tokens: list[list[int]], before: list[States], starts: list[int]) -> tuple[Tensor, list[States]]:
        """Sequences of different length are padded on the right."""
        counts = torch.tensor([len(one) for one in tokens], dtype=torch.long, device=self.model.device)
        slots = torch.arange(int(counts.max()), dtype=torch.long, device=self.model.device)
        ids = self.ids([one + [0] * (len(slots) - len(one)) for one in tokens])
        real = slots < counts[:, None]
        states = [joined(many) for many in zip(*before, strict=True)]
        logits, after = self._run(ids, states, starts, None if bool(real.all()) else real, counts - 1)
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
        self._groups.put(states)
        self._lengths.append(length)

    def drop(self, row: int) -> None:
        self._groups.drop(row)
        self._lengths[row] = self._lengths[-1]
        self._lengths.pop()

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

    def state_nbytes(self, length: int) -> int:
        """Of a run without numbers: what a layer keeps depends on its student, its window and the length."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            _, states = self._run(self.ids([[0] * length]), [None] * self.layers, [0], None, -1)
            return sum(state.nbytes for state in states)

    def shapes(self) -> Sequence[MixerState]:
        if not self._shapes:
            with torch.inference_mode():
                made = (student.on_zeros(1, None, return_state=True)[1] for student in self._students)
                self._shapes = [state for state in made if state is not None]
        return self._shapes
