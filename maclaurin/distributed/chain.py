"""Sequence parallelism by states: each process has a slice of every sequence, and each mixer hands its state to the process
that has the next slice.

A state has a constant size where the mechanism has one, so that what is sent does not grow with the sequence. Processes
form a chain: one begins a layer when the one before has ended it, so that all of them are busy once the chain is filled,
after as many layers as there are processes. The gradient of a state goes the same way back. Convolutions, positions,
cumulative gates and rotary angles are parts of the state and need nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, distributed

from maclaurin.distributed.states import rebuilt
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.handover import handing_over

HEADER = 4096  # bytes: the names, shapes and dtypes of a state's tensors

Group = distributed.ProcessGroup


@contextmanager
def sequence_parallel(group: Group | None = None) -> Iterator[Chain]:
    """Within, models of mixers take slices: process i of the group has the i-th of every sequence (`slice_of`).

    Losses are those of the slice, and so are gradients: `sum_gradients` adds them up. Forward and backward must be called
    within, by all processes alike.
    """
    group = distributed.group.WORLD if group is None else group
    if group is None:
        raise ValueError("sequence_parallel needs a process group: call torch.distributed.init_process_group before")
    chain = Chain(group)
    with handing_over(chain):
        yield chain
    chain.finish()


class Chain:
    """The places of the processes before and behind this one. received_bytes: of states and their gradients so far."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.received_bytes = 0
        self._on_their_way: list[tuple[distributed.Work, Tensor]] = []
        self._received: dict[Mixer, dict[str, Tensor]] = {}  # the last time, for a forward that is done again

    def receive(self, mixer: Mixer, device: torch.device) -> MixerState | None:
        if self.rank == 0:
            return None
        if not _is_recomputed():
            places = self._expected(device)
            anchor = torch.zeros((), dtype=torch.float32, device=device, requires_grad=torch.is_grad_enabled())
            values: Sequence[Tensor] = _Received.apply(self, anchor, *places.values())
            self._received[mixer] = dict(zip(places, values, strict=True))
        return cast(MixerState, rebuilt(mixer.shapes(), self._received[mixer]))

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        if self.rank == self.size - 1 or _is_recomputed():
            return y
        tensors = state.tensors()
        described = [
            (name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()
        ]
        header = json.dumps(described).encode().ljust(HEADER)
        if len(header) > HEADER:
            raise ValueError(f"the state of {mixer.kind!r} has too many parts to be sent: {len(tensors)}")
        self.post(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(y.device), 1)
        sent: Tensor = _Sent.apply(self, y, *tensors.values())
        return sent

    def _expected(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors that the process before has announced, empty."""
        header = self.take(torch.empty(HEADER, dtype=torch.uint8, device=device), -1)
        described = json.loads(bytes(header.tolist()))
        return {name: torch.empty(shape, dtype=getattr(torch, dtype), device=device) for name, shape, dtype in described}

    def post(self, tensor: Tensor, step: int) -> None:
        """To the process `step` places behind this one, while work goes on here."""
        self._on_their_way = [(work, kept) for work, kept in self._on_their_way if not work.is_completed()]
        tensor = tensor.detach().contiguous()
        work = distributed.isend(tensor, distributed.get_global_rank(self.group, self.rank + step), self.group)
        assert work is not None
        self._on_their_way.append((work, tensor))

    def take(self, tensor: Tensor, step: int) -> Tensor:
        distributed.recv(tensor, distributed.get_global_rank(self.group, self.rank + step), self.group)
        self.received_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def finish(self) -> None:
        for work, _ in self._on_their_way:
            work.wait()
        self._on_their_way.clear()


def _is_recomputed() -> bool:
    """Whether a checkpointed layer computes its forward again, in the backward: its states have been exchanged."""
    return torch._C._current_graph_task_id() != -1


class _Received(torch.autograd.Function):
    """anchor: a tensor with a gradient, without which autograd would not come back here."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, anchor: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
        ctx.chain = chain
        for place in places:
            chain.take(place, -1)
        ctx.mark_dirty(*places)
        ctx.mark_non_differentiable(*(place for place in places if not place.is_floating_point()))
        ctx.differentiable = [place.is_floating_point() for place in places]
        return places

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        for gradient, differentiable in zip(gradients, ctx.differentiable, strict=True):
            if differentiable:
                ctx.chain.post(gradient, -1)
        return None, None, *[None] * len(gradients)


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, y: Tensor, *tensors: Tensor) -> Tensor:
        ctx.chain = chain
        ctx.like = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        for tensor in tensors:
            chain.post(tensor, 1)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        found: list[Tensor | None] = []
        for shape, dtype, device in ctx.like:
            place = torch.empty(shape, dtype=dtype, device=device) if dtype.is_floating_point else None
            found.append(None if place is None else ctx.chain.take(place, 1))
        return None, gradient, *found
