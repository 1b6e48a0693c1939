"""Sequence parallelism by states: each process has a slice of every sequence, and each mixer hands its state to the process
that has the next slice.

A state has a constant size where the mechanism has one, so that what is sent does not grow with the sequence. Gradients of
states go the same way back. How states are exchanged:

    chain     a process begins a layer when the one before has ended it. Nothing is computed twice, and all of them are
              busy once the chain is filled, after as many layers as there are processes.
    fold      each folds its slice into a state first, without outputs; what goes along the chain is a sum of two states.
    gather    the same, and every process gets the states of all slices before its own at once; there is no chain.

The last two take another pass over the slice, and wait for none. Keys depend on the convolution and on positions, so that
these go ahead, from process to process. Mixers whose slices cannot be joined (`Mixer.folds`) stay with the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, distributed

from maclaurin.common.arguments import one_of
from maclaurin.distributed.messages import Group, Messages, answered
from maclaurin.distributed.states import rebuilt
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.handover import handing_over
from maclaurin.ops.states import State

EXCHANGES = ("chain", "fold", "gather")
STATE, AHEAD = 0, 1  # tags of messages
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

    def receive(
        self, mixer: Mixer, x: Tensor, cu_seqlens: Tensor | Sequence[int] | None
    ) -> tuple[Tensor, MixerState | None]:
        if self._folds(mixer):
            return self._folded(mixer, x, cu_seqlens)
        if self.rank == 0:
            return x, None
        return x, cast(MixerState, rebuilt(mixer.shapes(), self._from(mixer, -1, STATE, x.device)))

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        return y if self._folds(mixer) else self._to_next(y, state.tensors(), STATE)

    def _folds(self, mixer: Mixer) -> bool:
        return self.exchange != "chain" and mixer.folds

    def _folded(
        self, mixer: Mixer, x: Tensor, cu_seqlens: Tensor | Sequence[int] | None
    ) -> tuple[Tensor, MixerState | None]:
        """The state before the slice, while other processes find theirs."""
        first_of_last = 0 if cu_seqlens is None else int(cu_seqlens[-2])
        begins = cu_seqlens is not None and len(cu_seqlens) > 2  # whether the last document begins in this slice
        last = x[:, first_of_last:]
        initial = mixer.init_state(x.shape[0], x.device, x.dtype)
        start = initial if self.rank == 0 else self._ahead(mixer, initial, x.device)
        if ahead := _ahead_of(mixer, last, initial if begins else start):
            x = self._to_next(x, ahead, AHEAD)
        if self.size == 1:
            return x, None
        own, transition = mixer.fold(last, initial if begins else start)
        exchange = self._gathered if self.exchange == "gather" else self._chained
        x, before = exchange(mixer, x, own.attention, transition, begins)
        return x, None if before is None else replace(start, attention=before)

    def _ahead(self, mixer: Mixer, initial: MixerState, device: torch.device) -> MixerState:
        if initial.conv is None and initial.position is None:
            return initial
        parts = self._from(mixer, -1, AHEAD, device)
        conv = initial.conv if initial.conv is None else replace(initial.conv, inputs=parts["conv"])
        return replace(initial, conv=conv, position=parts.get("position"))

    def _chained(self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool) -> tuple[Tensor, State | None]:
        before = None
        if self.rank:
            before = rebuilt(own, self._from(mixer, -1, STATE, x.device))
        after = own if before is None or begins else own.after(before, transition)
        return self._to_next(x, after.tensors(), STATE), before

    def _gathered(
        self, mixer: Mixer, x: Tensor, own: State, transition: Tensor, begins: bool
    ) -> tuple[Tensor, State | None]:
        flag = torch.full((), begins, dtype=torch.bool, device=x.device)
        behind = range(1, self.size - self.rank)
        if behind and not _is_recomputed():
            parts = {**own.tensors(), TRANSITION: transition, BEGINS: flag}
            x = self.messages.send(x, parts, behind, STATE)
        before = None
        for step in range(-self.rank, 0):
            parts = self._from(mixer, step, STATE, x.device)
            x, one = answered(x, parts[TRANSITION]), rebuilt(own, parts)
            before = one if before is None or bool(parts[BEGINS]) else one.after(before, parts[TRANSITION])
        return x, before

    def _from(self, mixer: Mixer, step: int, tag: int, device: torch.device) -> dict[str, Tensor]:
        if not _is_recomputed():
            self._received[mixer, step, tag] = self.messages.receive(step, device, tag)
        return self._received[mixer, step, tag]

    def _to_next(self, through: Tensor, tensors: Mapping[str, Tensor], tag: int) -> Tensor:
        if self.rank == self.size - 1 or _is_recomputed():
            return through
        return self.messages.send(through, tensors, [1], tag)


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
