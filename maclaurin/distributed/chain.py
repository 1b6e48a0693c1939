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
out (`balance.py`), or go round in a ring on GPUs (`ring.py`): waiting for a chain would take as long as the layer on one
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, distributed

from maclaurin.common.arguments import one_of
from maclaurin.distributed import balance, ring
from maclaurin.distributed.link import AHEAD, STATE, Link
from maclaurin.distributed.messages import Group, answered
from maclaurin.distributed.slices import Bounds, Received
from maclaurin.distributed.states import ahead_parts, rebuilt, started
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.handover import handing_over
from maclaurin.ops.states import State

EXCHANGES = ("chain", "fold", "gather")
TRANSITION, BEGINS = "transition", "begins"  # what is gathered beside the tensors of a state


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
    chain.link.messages.finish()


class Chain:
    """The processes before and behind this one."""

    def __init__(self, group: Group, exchange: str = "chain") -> None:
        self.link = Link(group, exchange)
        self.rank, self.size = self.link.rank, self.link.size
        self.exchange = exchange

    @property
    def received_bytes(self) -> int:
        """Of states and their gradients so far."""
        return self.link.messages.received_bytes

    def receive(self, mixer: Mixer, x: Tensor, cu_seqlens: Bounds) -> Received:
        if not self._hands_on(mixer):
            return self._folded(mixer, x, cu_seqlens)
        if self.rank == 0:
            return x, None, cu_seqlens
        parts = self.link.take(mixer, -1, STATE, x.device)
        return x, cast(MixerState, rebuilt(mixer.shapes(), parts)), cu_seqlens

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        if self._hands_on(mixer):
            y = self.link.give(y, state.tensors(), self._next, STATE)
        elif balance.is_balanced(mixer) and not isinstance(state.attention, ring.RingState):
            y = balance.completed(self.link, mixer, y)
        return self.link.asking(y)

    def _hands_on(self, mixer: Mixer) -> bool:
        """Whether the next process waits until this one has ended the layer."""
        return not mixer.folds or (self.exchange == "chain" and not balance.is_balanced(mixer))

    def _folded(self, mixer: Mixer, x: Tensor, cu_seqlens: Bounds) -> Received:
        """The state before the slice, while other processes find theirs."""
        is_balanced = balance.is_balanced(mixer)
        first_of_last = 0 if cu_seqlens is None else int(cu_seqlens[-2])
        begins = cu_seqlens is not None and len(cu_seqlens) > 2  # whether the last document begins in this slice
        last = x[:, first_of_last:]
        start = self._start(mixer, x)
        initial = mixer.init_state(x.shape[0], x.device, x.dtype)
        before_last = initial if begins else start
        if ahead := _ahead_of(mixer, last, before_last):
            x = self.link.give(x, ahead, self._next, AHEAD)
        if self.size == 1:
            return x, None, cu_seqlens
        if is_balanced and ring.runs_in_ring(self.link, mixer, x, cu_seqlens):
            return x, ring.in_ring(mixer, start, self.link.messages.group, x.shape[0]), None
        if not balance.keeps_tokens(mixer):
            self.link.expect_alike(mixer, last, self._sources)
        own, transition = mixer.fold(last, before_last)
        if is_balanced:
            return balance.gathered(self.link, mixer, x, cu_seqlens, start, own.attention, transition)
        exchange = self._gathered if self.exchange == "gather" else self._chained
        x, before = exchange(mixer, x, own.attention, transition, begins)
        return x, None if before is None else replace(start, attention=before), cu_seqlens

    @property
    def _sources(self) -> range:
        """Whose states come here, where they are folded."""
        return range(-self.rank if self.exchange == "gather" else max(-1, -self.rank), 0)

    @property
    def _next(self) -> list[int]:
        return [1] if self.rank < self.size - 1 else []

    def _start(self, mixer: Mixer, x: Tensor) -> MixerState:
        """Before the slice, but for the attention."""
        initial = mixer.init_state(x.shape[0], x.device, x.dtype)
        if self.rank == 0 or (initial.conv is None and initial.position is None):
            return initial
        return started(initial, self.link.take(mixer, -1, AHEAD, x.device))

    def _chained(self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool) -> tuple[Tensor, State | None]:
        varies = balance.keeps_tokens(mixer)
        if not varies:
            self.link.are_alike(mixer, x, own.tensors(), self._sources)
        before = None
        if self.rank:
            before = rebuilt(own, self.link.take(mixer, -1, STATE, x.device))
        after = own if before is None or begins else own.after(before, transition)
        return self.link.give(x, after.tensors(), self._next, STATE, described_too=varies), before

    def _gathered(
        self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool
    ) -> tuple[Tensor, State | None]:
        flag = torch.full((), begins, dtype=torch.bool, device=x.device)
        parts = {**own.tensors(), TRANSITION: transition, BEGINS: flag}
        varies = balance.keeps_tokens(mixer)
        x = self.link.give(x, parts, range(1, self.size - self.rank), STATE, described_too=varies)
        if not varies:
            self.link.are_alike(mixer, x, parts, self._sources)
        before = None
        for step in self._sources:
            parts = self.link.take(mixer, step, STATE, x.device)
            received = next(part for part in parts.values() if part.is_floating_point())
            x, one = answered(x, received), rebuilt(own, parts)
            before = one if before is None or bool(parts[BEGINS]) else one.after(before, parts[TRANSITION])
        return x, before


def _ahead_of(mixer: Mixer, x: Tensor, start: MixerState) -> dict[str, Tensor]:
    """What the keys of the next slice depend on. Of the convolution the last inputs are enough."""
    if start.conv is None:
        return {} if start.position is None else {"position": start.position + x.shape[1]}
    width = max(1, start.conv.inputs.shape[1])
    after, _ = mixer.fold(x[:, -width:], start)
    rest = max(0, x.shape[1] - width)
    return ahead_parts(after if after.position is None else replace(after, position=after.position + rest))
