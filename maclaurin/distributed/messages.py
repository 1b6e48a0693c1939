"""States from process to process, and their gradients the same way back.

All of it is point to point: a collective in a backward would need the same graph on every process, and that of the first
and of the last one is another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

HEADER = 4096  # bytes: the names, shapes and dtypes of a state's tensors

Group = distributed.ProcessGroup


class Messages:
    """Between the processes of a group, by their distance to this one. received_bytes: of all that came so far.

    tag: what a message is about, so that those that are under way at the same time cannot be taken for each other.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.received_bytes = 0
        self._on_their_way: list[tuple[distributed.Work, Tensor]] = []

    def send(self, through: Tensor, tensors: Mapping[str, Tensor], steps: Sequence[int], tag: int = 0) -> Tensor:
        """`through` as it is; when its gradient is there, those of the tensors are fetched."""
        described = [
            (name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()
        ]
        header = json.dumps(described).encode().ljust(HEADER)
        if len(header) > HEADER:
            raise ValueError(f"a state has too many parts to be sent: {len(tensors)}")
        for step in steps:
            self.post(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(through.device), step, tag)
        sent: Tensor = _Sent.apply(self, through, tuple(steps), tag, *tensors.values())
        return sent

    def receive(self, step: int, device: torch.device, tag: int = 0) -> dict[str, Tensor]:
        """The tensors that the process `step` places away sends next."""
        header = self.take(torch.empty(HEADER, dtype=torch.uint8, device=device), step, tag)
        described = json.loads(bytes(header.tolist()))
        places = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for _, shape, dtype in described]
        anchor = torch.zeros((), dtype=torch.float32, device=device, requires_grad=torch.is_grad_enabled())
        values: Sequence[Tensor] = _Received.apply(self, anchor, step, tag, *places)
        return dict(zip((name for name, _, _ in described), values, strict=True))

    def post(self, tensor: Tensor, step: int, tag: int) -> None:
        """While work goes on here. What is empty is known from its description, and need not be sent."""
        if not tensor.numel():
            return
        self._on_their_way = [(work, kept) for work, kept in self._on_their_way if not work.is_completed()]
        tensor = tensor.detach().contiguous()
        work = distributed.isend(tensor, distributed.get_global_rank(self.group, self.rank + step), self.group, tag)
        assert work is not None
        self._on_their_way.append((work, tensor))

    def take(self, tensor: Tensor, step: int, tag: int) -> Tensor:
        if not tensor.numel():
            return tensor
        distributed.recv(tensor, distributed.get_global_rank(self.group, self.rank + step), self.group, tag)
        self.received_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def finish(self) -> None:
        for work, _ in self._on_their_way:
            work.wait()
        self._on_their_way.clear()


def answered(through: Tensor, received: Tensor) -> Tensor:
    """`through` as it is; its backward gives what was received a gradient of zeros, for which the sender waits even where
    nothing depends on it."""
    tied: Tensor = _Answered.apply(through, received)
    return tied


class _Answered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, through: Tensor, received: Tensor) -> Tensor:
        ctx.save_for_backward(received)
        return through.view_as(through)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (received,) = ctx.saved_tensors
        return gradient, torch.zeros_like(received)


class _Received(torch.autograd.Function):
    """anchor: a tensor with a gradient, without which autograd would not come back here."""

    @staticmethod
    def forward(ctx: Any, messages: Messages, anchor: Tensor, step: int, tag: int, *places: Tensor) -> tuple[Tensor, ...]:
        ctx.messages, ctx.step, ctx.tag = messages, step, tag
        for place in places:
            messages.take(place, step, tag)
        ctx.mark_dirty(*places)
        ctx.mark_non_differentiable(*(place for place in places if not place.is_floating_point()))
        ctx.differentiable = [place.is_floating_point() for place in places]
        return places

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        for gradient, differentiable in zip(gradients, ctx.differentiable, strict=True):
            if differentiable:
                ctx.messages.post(gradient, ctx.step, ctx.tag)
        return None, None, None, None, *[None] * len(gradients)


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, messages: Messages, through: Tensor, steps: tuple[int, ...], tag: int, *tensors: Tensor) -> Tensor:
        ctx.messages, ctx.steps, ctx.tag = messages, steps, tag
        ctx.like = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        for step in steps:
            for tensor in tensors:
                messages.post(tensor, step, tag)
        return through.view_as(through)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        sums: list[Tensor | None] = [None] * len(ctx.like)
        for step in ctx.steps:
            for number, (shape, dtype, device) in enumerate(ctx.like):
                if dtype.is_floating_point:
                    found = ctx.messages.take(torch.empty(shape, dtype=dtype, device=device), step, ctx.tag)
                    before = sums[number]
                    sums[number] = found if before is None else before + found
        return None, gradient, None, None, *sums
