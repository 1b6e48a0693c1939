"""The states of one layer, a row for each sequence that runs, kept where a step writes them.

A row joins with a copy of its own state and leaves with one of the last row's: nothing else moves. Tokens that a layer keeps
lie row by row, where a native kernel steps them in place (`ops/native/rows.py`). Layers that keep tokens in another way have
them joined, beside sequences of similar length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from maclaurin.mixers import Mixer, MixerState
from maclaurin.mixers.base import AT_ONCE, Zeros
from maclaurin.mixers.mechanisms import Power, Softmax
from maclaurin.ops.features import Kernel
from maclaurin.ops.folding import fold_length_of
from maclaurin.ops.native import library
from maclaurin.ops.native.conv_step import ConvInPlace
from maclaurin.ops.native.in_place import InPlace
from maclaurin.ops.native.rows import Rows, RowState, Scores
from maclaurin.ops.power import SERIES
from maclaurin.ops.states import LinearState, PowerState, State, TokenState

SHORT, LONG = 70, 3000  # tokens: a state that has the same shapes after either is of constant size
SQUARE = Kernel.of(2)
FEWEST = 4  # rows of a storage, which doubles when it is full


class Slots:
    """What a layer does with the rows."""

    def put(self, state: MixerState) -> None:
        """One more row, behind the others: the state of one sequence, copied."""
        raise NotImplementedError

    def drop(self, row: int) -> None:
        """The last row takes its place."""
        raise NotImplementedError

    def take(self, row: int) -> MixerState:
        """The state of one row, copied."""
        raise NotImplementedError

    def step(self, x: Tensor) -> Tensor:
        """y (rows, 1, d_model) of one more token of every row."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError


def slots_of(mixer: Mixer, capacity: int) -> Slots:
    scores = scores_of(getattr(mixer, "mechanism", None), mixer.shapes().attention, next(mixer.parameters()))
    if scores is not None or _is_constant(mixer):
        return Stepped(mixer, Places(capacity, scores, mixer.trust))
    return Joined(mixer)


def _is_constant(mixer: Mixer) -> bool:
    short, long = (mixer.state_of(tokens, Zeros(1, "meta", torch.float32)) for tokens in (SHORT, LONG))
    shapes = [{name: x.shape for name, x in state.tensors().items()} for state in (short, long)]
    return shapes[0] == shapes[1] and not _keeps_tokens(short)


def _keeps_tokens(state: State) -> bool:
    held = (value for value in vars(state).values() if isinstance(value, State))
    return isinstance(state, TokenState) or any(map(_keeps_tokens, held))


def scores_of(mechanism: Any, kept: State, like: Tensor) -> Scores | None:
    """What a mechanism does with the tokens that it keeps, if a kernel steps rows of them. kept: a state of it, whose shapes
    are looked at. like: of the device and the dtype of the inputs."""
    if not library.may_run() or not _is_plain(like):
        return None
    if type(kept) not in (TokenState, PowerState) or not isinstance(kept, TokenState):
        return None
    (G, K), V = kept.keys.shape[2:], kept.values.shape[3]
    if kept.log_decay is not None and kept.log_decay.shape[2] != G:
        return None
    scale = K**-0.5 if getattr(mechanism, "scale", None) is None else mechanism.scale
    if type(mechanism) is Softmax and type(kept) is TokenState:
        odd = mechanism.numerator != "exp" or mechanism.divisor != "sum" or mechanism.divisor_epsilon
        return None if odd or mechanism.score_cap is not None else Scores(True, scale, window=mechanism.window)
    if type(mechanism) is not Power or type(kept) is not PowerState:
        return None
    kernel, weights = Kernel.of(mechanism.order), mechanism.order_weights
    plain = kernel == SQUARE and weights is None
    if not (plain or kernel == SERIES):
        return None
    if mechanism.fold_at is None:
        fold_at = fold_length_of(kernel, K, V, mechanism.normalize, torch.float32)
    else:
        fold_at = mechanism.fold_at(torch.float32)
    orders = None if weights is None else weights.detach().float().contiguous()
    in_halves = mechanism.state_dtype == "bfloat16"
    return Scores(False, scale, mechanism.normalize, None, fold_at, mechanism.fold_every, not plain, orders, in_halves)


def _is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32


def known(state: MixerState, trust: Callable[[MixerState], None] | None = None) -> MixerState:
    """Marked as made by the ops, and by the mixer whose `trust` it is: they do not look at it again."""
    if trust is not None:
        trust(state)
    device = next((x.device for x in state.tensors().values()), torch.device("cpu"))  # rows are stepped on a CPU
    for part in (state, *vars(state).values()):
        if isinstance(part, State):
            object.__setattr__(part, "sound_on", device)
    return state


class Places:
    """States of constant size, all rows of a tensor in one storage; kept tokens, if there are scores of any, in `rows`.

    state: of all rows, for a step of the layer; `write` takes what the step made of it. trust: of the mixer.
    """

    state: MixerState

    def __init__(self, capacity: int, scores: Scores | None, trust: Callable[[MixerState], None] | None = None) -> None:
        self.capacity, self.trust = capacity, trust
        self.rows = None if scores is None else Rows(capacity, scores)
        self.count = 0
        self.storage: list[Tensor] = []
        self.views: dict[str, Tensor] = {}  # the rows in use
        self.template: MixerState | None = None

    def put(self, state: MixerState) -> None:
        """One more row, behind the others: the state of one sequence, copied."""
        if self.rows is not None:
            assert isinstance(state.attention, TokenState)
            self.rows.put(state.attention)
            state = replace(state, attention=RowState.of(self.rows))
        tensors = list(state.tensors().values())
        if self.template is None:
            self.template = state
            self.storage = [x.new_empty(min(FEWEST, self.capacity), *x.shape[1:]) for x in tensors]
        if any(len(x) == self.count for x in self.storage):
            self.storage = [self._grown(x) for x in self.storage]
        for storage, x in zip(self.storage, tensors, strict=True):
            storage[self.count] = x[0]
        self._use(self.count + 1)

    def _grown(self, storage: Tensor) -> Tensor:
        larger = storage.new_empty(min(2 * self.count, self.capacity), *storage.shape[1:])
        larger[: self.count] = storage
        return larger

    def drop(self, row: int) -> None:
        """The last row takes its place."""
        if self.rows is not None:
            self.rows.drop(row)
        if row < self.count - 1:
            for storage in self.storage:
                storage[row] = storage[self.count - 1]
        self._use(self.count - 1)

    def _use(self, count: int) -> None:
        assert self.template is not None
        self.count = count
        state = self.template.with_tensors(storage[:count] for storage in self.storage)
        self.views = state.tensors()
        natively = library.may_run()
        if natively and type(state.attention) is LinearState and _is_plain(state.attention.recurrent):
            state = replace(state, attention=InPlace.of(state.attention.recurrent))
        if natively and state.conv is not None and _is_plain(state.conv.inputs):
            state = replace(state, conv=ConvInPlace(state.conv.inputs))
        self.state = known(state, self.trust)

    def take(self, row: int) -> MixerState:
        """The state of one row, copied."""
        assert self.template is not None
        state = self.template.with_tensors(storage[row : row + 1].clone() for storage in self.storage)
        return state if self.rows is None else replace(state, attention=self.rows.take(row))

    def write(self, after: MixerState) -> None:
        """The state after one more token of every row; what was stepped in place is there already."""
        for name, new in after.tensors().items():
            if new is not self.views[name]:
                self.views[name].copy_(new)

    @property
    def nbytes(self) -> int:
        held = sum(x.numel() * x.element_size() for x in self.views.values())
        return held if self.rows is None else held + self.rows.nbytes


class Stepped(Slots):
    """Rows in places, all of them one call of the mixer."""

    def __init__(self, mixer: Mixer, places: Places) -> None:
        self.mixer, self.places = mixer, places

    def put(self, state: MixerState) -> None:
        self.places.put(state)

    def drop(self, row: int) -> None:
        self.places.drop(row)

    def take(self, row: int) -> MixerState:
        return self.places.take(row)

    def step(self, x: Tensor) -> Tensor:
        y, after = self.mixer.mix(x, self.places.state, AT_ONCE)
        assert after is not None
        self.places.write(after)
        return y

    @property
    def nbytes(self) -> int:
        return self.places.nbytes


class Joined(Slots):
    """States of other kinds, so that a step calls the mixer once for each group of rows."""

    def __init__(self, mixer: Mixer) -> None:
        self.mixer, self.groups = mixer, Groups()

    def put(self, state: MixerState) -> None:
        self.groups.put([state])

    def drop(self, row: int) -> None:
        self.groups.drop(row)

    def take(self, row: int) -> MixerState:
        return self.groups.take(row)[0]

    def step(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)

        def run(rows: list[int], states: list[MixerState]) -> list[Any]:
            y[rows], after = self.mixer(x[rows], states[0])
            return [after]

        self.groups.step(run)
        return y

    @property
    def nbytes(self) -> int:
        return self.groups.nbytes


class Groups:
    """Rows with the states of one or more layers, joined by `cat` with rows of similar length and the same parts, so that a
    long sequence does not make short ones wait."""

    def __init__(self) -> None:
        self.count = 0
        self._groups: dict[Any, tuple[list[int], list[MixerState]]] = {}

    def put(self, states: Sequence[MixerState]) -> None:
        trimmed = [state.trimmed() for state in states]
        held = [state.tensors() for state in trimmed]
        slots = max((x.shape[1] for one in held for name, x in one.items() if name.endswith("keys")), default=0)
        key = (slots.bit_length(), *(tuple(one) for one in held))
        if key in self._groups:
            rows, others = self._groups[key]
            joined = [MixerState.cat(pair) for pair in zip(others, trimmed, strict=True)]
            self._groups[key] = ([*rows, self.count], joined)
        else:
            self._groups[key] = ([self.count], trimmed)
        self.count += 1

    def drop(self, row: int) -> None:
        key, place = self._find(row)
        rows, states = self._groups.pop(key)
        if len(rows) > 1:
            kept = [i for i in range(len(rows)) if i != place]
            self._groups[key] = ([rows[i] for i in kept], [state.select(kept).trimmed() for state in states])
        self.count -= 1
        if row < self.count:
            key, place = self._find(self.count)
            self._groups[key][0][place] = row

    def _find(self, row: int) -> tuple[Any, int]:
        return next((key, rows.index(row)) for key, (rows, _) in self._groups.items() if row in rows)

    def take(self, row: int) -> list[MixerState]:
        key, place = self._find(row)
        return [state.select([place]).trimmed() for state in self._groups[key][1]]

    def step(self, run: Callable[[list[int], list[MixerState]], list[Any]]) -> None:
        """run: the states of these rows after one more token."""
        for key, (rows, states) in self._groups.items():
            self._groups[key] = (rows, run(rows, states))

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for _, states in self._groups.values() for state in states)
