"""Sequence parallelism by states: each process has a slice of every sequence, and each mixer hands its state to the process
that has the next slice.

A state has a constant size where the mechanism has one, so that what is sent does not grow with the sequence. Gradients of
states go the same way back. How states are exchanged:

    chain     a process begins a layer when the one before has ended it. Nothing is computed twice, and all of them are
              busy once the chain is filled, after as many layers as there are processes.
    fold      each folds its slice into a state first, without outputs; what goes along the chain is a sum of two states.
    gather    the same, and every process gets the states of all slices before its own at once; there is no chain.

The last two take another pass over the slice, and wait for none. Keys depend on the convolution and on positions, so that
these go ahead, from process to process. Mixers whose slices cannot be joined (`Mixer.folds`) stay with the chain. Where the
state is the tokens themselves, as in softmax layers of hybrids, keys and values are always gathered and the queries shared
out (`balance.py`): waiting for a chain would take as long as the layer on one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import cast

import torch
from torch import Tensor, distributed

from maclaurin.common.arguments import one_of
from maclaurin.distributed.balance import Load, given_away, needed_by, partner_of, sent_to
from maclaurin.distributed.messages import Group, Messages, answered
from maclaurin.distributed.states import rebuilt
from maclaurin.mixers.base import AT_ONCE, Mixer, MixerState
from maclaurin.mixers.handover import handing_over
from maclaurin.ops.states import ConvState, State, TokenState

Bounds = Tensor | Sequence[int] | None
Received = tuple[Tensor, MixerState | None, Bounds]

EXCHANGES = ("chain", "fold", "gather")
STATE, AHEAD, GIVEN, DONE = range(4)  # tags of messages
TRANSITION, BEGINS, LOAD = "transition", "begins", "load"  # what is gathered beside the tensors of a state


@contextmanager
def sequence_parallel(group: Group | None = None, exchange: str = "chain") -> Iterator[Chain]:
    """Within, models of mixers take slices: process i of the group has the i-th of every sequence (`slice_of`).

    Losses are those of the slice, and so are gradients: `sum_gradients` adds them up. Forward and backward must be called
    within, by all processes alike. exchange: "chain", "fold" or "gather" (`chain.py`); the numbers are the same.
    """
    group = distributed.group.WORLD if group is None else group
    if group is None:
        raise ValueError("sequence_parallel needs a process group: call torch.distributed.init_process_group before")
    one_of("exchange", exchange, EXCHANGES)
    chain = Chain(group, exchange)
    with handing_over(chain):
        yield chain
    chain.messages.finish()


class Chain:
    """The processes before and behind this one."""

    def __init__(self, group: Group, exchange: str = "chain") -> None:
        self.messages = Messages(group)
        self.rank, self.size = self.messages.rank, self.messages.size
        self.exchange = exchange
        self._received: dict[
            tuple[Mixer, int, int], dict[str, Tensor]
        ] = {}  # the last time, for a forward that is done again

    @property
    def received_bytes(self) -> int:
        """Of states and their gradients so far."""
        return self.messages.received_bytes

    def receive(self, mixer: Mixer, x: Tensor, cu_seqlens: Bounds) -> Received:
        if self.exchange == "chain" and not self._balances(mixer) or not mixer.folds:
            if self.rank == 0:
                return x, None, cu_seqlens
            return x, cast(MixerState, rebuilt(mixer.shapes(), self._from(mixer, -1, STATE, x.device))), cu_seqlens
        return self._folded(mixer, x, cu_seqlens)

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        if self._balances(mixer):
            return self._completed(mixer, y)
        if self.exchange == "chain" or not mixer.folds:
            return self._to(y, state.tensors(), self._next, STATE)
        return y

    def _balances(self, mixer: Mixer) -> bool:
        return mixer.folds and type(mixer.shapes().attention) is TokenState

    def _folded(self, mixer: Mixer, x: Tensor, cu_seqlens: Bounds) -> Received:
        """The state before the slice, while other processes find theirs."""
        first_of_last = 0 if cu_seqlens is None else int(cu_seqlens[-2])
        begins = cu_seqlens is not None and len(cu_seqlens) > 2  # whether the last document begins in this slice
        last = x[:, first_of_last:]
        initial = mixer.init_state(x.shape[0], x.device, x.dtype)
        start = initial if self.rank == 0 else _started(initial, self._ahead(mixer, initial, x.device))
        if ahead := _ahead_of(mixer, last, initial if begins else start):
            x = self._to(x, ahead, self._next, AHEAD)
        if self.size == 1:
            return x, None, cu_seqlens
        own, transition = mixer.fold(last, initial if begins else start)
        if self._balances(mixer):
            return self._balanced(mixer, x, cu_seqlens, start, {**own.attention.tensors(), TRANSITION: transition})
        exchange = self._gathered if self.exchange == "gather" else self._chained
        x, before = exchange(mixer, x, own.attention, transition, begins)
        return x, None if before is None else replace(start, attention=before), cu_seqlens

    def _ahead(self, mixer: Mixer, initial: MixerState, device: torch.device) -> dict[str, Tensor]:
        if initial.conv is None and initial.position is None:
            return {}
        return self._from(mixer, -1, AHEAD, device)

    def _chained(self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool) -> tuple[Tensor, State | None]:
        before = None
        if self.rank:
            before = rebuilt(own, self._from(mixer, -1, STATE, x.device))
        after = own if before is None or begins else own.after(before, transition)
        return self._to(x, after.tensors(), self._next, STATE), before

    def _gathered(
        self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool
    ) -> tuple[Tensor, State | None]:
        flag = torch.full((), begins, dtype=torch.bool, device=x.device)
        parts = {**own.tensors(), TRANSITION: transition, BEGINS: flag}
        x = self._to(x, parts, range(1, self.size - self.rank), STATE)
        before = None
        for step in range(-self.rank, 0):
            parts = self._from(mixer, step, STATE, x.device)
            x, one = answered(x, parts[TRANSITION]), rebuilt(own, parts)
            before = one if before is None or bool(parts[BEGINS]) else one.after(before, parts[TRANSITION])
        return x, before

    def _balanced(
        self, mixer: Mixer, x: Tensor, cu_seqlens: Bounds, start: MixerState, own: dict[str, Tensor]
    ) -> Received:
        """The tokens that this process keeps, and the state before them; those that its partner gives are computed here."""
        rank, partner = self.rank, partner_of(self.rank, self.size)
        bounds = [0, x.shape[1]] if cu_seqlens is None else [int(bound) for bound in cu_seqlens]
        own[LOAD] = torch.tensor(astuple(Load.of(bounds)), dtype=torch.long, device=x.device)
        x = self._to(x, own, [other - rank for other in sent_to(rank, self.size)], STATE)
        slices = {rank: own}
        for other in needed_by(rank, self.size):
            slices[other] = self._from(mixer, other - rank, STATE, x.device)
            x = answered(x, slices[other][TRANSITION])
        loads = [Load(*slices[other][LOAD].tolist()) for other in range(max(rank, partner) + (rank >= partner))]

        def before(slice: int) -> State:
            state = start.attention
            for load, parts in zip(loads[:slice], map(slices.__getitem__, range(slice)), strict=True):
                one = rebuilt(start.attention, parts)
                state = one if load.begins else one.after(state, parts[TRANSITION])
            return state

        if rank < partner:
            x = self._for_partner(mixer, x, start, before(partner), partner - rank)
        count = given_away(loads, rank, self.size) if rank > partner else 0
        state = replace(start, attention=before(rank)) if rank else None
        if rank <= partner:
            return x, state, cu_seqlens
        given = x[:, :count]
        x = self._to(x, {"x": given, **_ahead_parts(start)}, [partner - rank], GIVEN)
        if not count:
            return x, state, cu_seqlens
        assert state is not None
        after, transition = mixer.fold(given, start)
        state = replace(after, attention=after.attention.after(state.attention, transition))
        return x[:, count:], state, None if cu_seqlens is None else [0, *(bound - count for bound in bounds[1:])]

    def _for_partner(self, mixer: Mixer, x: Tensor, start: MixerState, before: State, step: int) -> Tensor:
        """x as it is, once the layer has been computed for the tokens that the partner gives."""
        parts = self._from(mixer, step, GIVEN, x.device)
        y = given = parts["x"]
        if given.shape[1]:
            y, _ = mixer.mix(given, replace(_started(start, parts), attention=before), replace(AT_ONCE, return_state=False))
        return self._to(x, {"y": y}, [step], DONE)

    def _completed(self, mixer: Mixer, y: Tensor) -> Tensor:
        """Behind the outputs that the partner has computed."""
        partner = partner_of(self.rank, self.size)
        if partner >= self.rank:
            return y
        return torch.cat([self._from(mixer, partner - self.rank, DONE, y.device)["y"], y], 1)

    @property
    def _next(self) -> list[int]:
        return [1] if self.rank < self.size - 1 else []

    def _from(self, mixer: Mixer, step: int, tag: int, device: torch.device) -> dict[str, Tensor]:
        if not _is_recomputed():
            self._received[mixer, step, tag] = self.messages.receive(step, device, tag)
        return self._received[mixer, step, tag]

    def _to(self, through: Tensor, tensors: Mapping[str, Tensor], steps: Sequence[int], tag: int) -> Tensor:
        if not steps or _is_recomputed():
            return through
        return self.messages.send(through, tensors, steps, tag)


def _started(initial: MixerState, parts: Mapping[str, Tensor]) -> MixerState:
    """The initial state with the convolution and the position behind earlier tokens."""
    conv = initial.conv if initial.conv is None else ConvState(parts["conv"])
    return replace(initial, conv=conv, position=parts.get("position"))


def _ahead_parts(start: MixerState) -> dict[str, Tensor]:
    parts = {"conv": None if start.conv is None else start.conv.inputs, "position": start.position}
    return {name: part for name, part in parts.items() if part is not None}


def _ahead_of(mixer: Mixer, x: Tensor, start: MixerState) -> dict[str, Tensor]:
    """What the keys of the next slice depend on: the last inputs of the convolution, for which the last tokens are enough,
    and how many tokens there are."""
    parts = {}
    if start.conv is not None:
        tail = x[:, -max(1, start.conv.inputs.shape[1]) :]
        conv = mixer.fold(tail, start)[0].conv
        assert conv is not None
        parts["conv"] = conv.inputs
    if start.position is not None:
        parts["position"] = start.position + x.shape[1]
    return parts


def _is_recomputed() -> bool:
    """Whether a checkpointed layer computes its forward again, in the backward: its states have been exchanged."""
    return torch._C._current_graph_task_id() != -1
