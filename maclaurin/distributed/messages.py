"""Tensors that go from process to process, and their gradients the same way back.

All of it is point to point: a collective in a backward would need the same graph on every process, and that of the first
and of the last one is another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

HEADER = 4096  # bytes: the names, shapes and dtypes of a state's tensors

Group = distributed.ProcessGroup
Shape = tuple[str, list[int], str]  # name, sizes and dtype of a tensor


def described(tensors: Mapping[str, Tensor]) -> list[Shape]:
    return [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]


@dataclass(frozen=True)
class Coming:
    """Tensors on their way here, and what tells when they are there."""

    tensors: dict[str, Tensor]
    arrivals: list[distributed.Work]

    def wait(self) -> None:
        for arrival in self.arrivals:
            arrival.wait()


class Messages:
    """Between the processes of a group, by their distance to this one. received_bytes: of all that came so far.

    tag: what a message is about, so that those that are under way at the same time cannot be taken for each other. A message
    whose shapes the receiver cannot know begins with their description.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.received_bytes = 0
        self._sent: list[Answers] = []
        self._on_their_way: list[tuple[distributed.Work, Tensor]] = []

    def send(
        self, through: Tensor, tensors: Mapping[str, Tensor], steps: Sequence[int], tag: int, *, described_too: bool
    ) -> Tensor:
        """`through` as it is; when its gradient is there, those of the tensors are fetched."""
        if described_too:
            header = json.dumps(described(tensors)).encode().ljust(HEADER)
            if len(header) > HEADER:
                raise ValueError(f"a state has too many parts to be sent: {len(tensors)}")
            for step in steps:
                self._post(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(through.device), step, tag)
        answers = Answers(self, steps, tag, described(tensors), through.device)
        self._sent.append(answers)
        sent: Tensor = _Sent.apply(answers, through, *tensors.values())
        return sent

    def expect(self, shapes: Iterable[Shape], step: int, device: torch.device, tag: int) -> Coming:
        """The tensors that the process `step` places away sends next, while work goes on here."""
        tensors = {name: torch.empty(sizes, dtype=getattr(torch, dtype), device=device) for name, sizes, dtype in shapes}
        arrivals, source = [], distributed.get_global_rank(self.group, self.rank + step)
        for tensor in tensors.values():
            if tensor.numel():
                arrival = distributed.irecv(tensor, source, self.group, tag)
                assert arrival is not None
                arrivals.append(arrival)
                self.received_bytes += tensor.numel() * tensor.element_size()
        return Coming(tensors, arrivals)

    def expect_described(self, step: int, device: torch.device, tag: int) -> Coming:
        """The same, where what comes says its shapes."""
        coming = self.expect([("header", [HEADER], "uint8")], step, device, tag)
        coming.wait()
        return self.expect(json.loads(bytes(coming.tensors["header"].tolist())), step, device, tag)

    def arrived(self, coming: Coming, step: int, tag: int) -> dict[str, Tensor]:
        """Waits for the tensors; their gradients will go back."""
        places = list(coming.tensors.values())
        anchor = torch.zeros((), dtype=torch.float32, device=places[0].device, requires_grad=torch.is_grad_enabled())
        values: Sequence[Tensor] = _Received.apply(self, anchor, step, tag, coming, *places)
        return dict(zip(coming.tensors, values, strict=True))

    def asking(self, y: Tensor) -> Tensor:
        """y as it is; as soon as its gradient is there, those of all that was sent since the last call are asked for: they
        come while the backward is on its way to where they are needed."""
        sent, self._sent = self._sent, []
        asked: Tensor = _Asking.apply(sent, y) if sent else y
        return asked

    def post(self, tensor: Tensor, step: int, tag: int) -> None:
        """While work goes on here. What is empty need not be sent."""
        if tensor.numel():
            self._post(tensor, step, tag)

    def _post(self, tensor: Tensor, step: int, tag: int) -> None:
        self._on_their_way = [(work, kept) for work, kept in self._on_their_way if not work.is_completed()]
        tensor = tensor.detach().contiguous()
        work = distributed.isend(tensor, distributed.get_global_rank(self.group, self.rank + step), self.group, tag)
        assert work is not None
        self._on_their_way.append((work, tensor))

    def finish(self) -> None:
        for work, _ in self._on_their_way:
            work.wait()
        self._on_their_way.clear()


class Answers:
    """The gradients of tensors that were sent to the processes `steps` places away."""

    def __init__(
        self, messages: Messages, steps: Sequence[int], tag: int, shapes: Sequence[Shape], device: torch.device
    ) -> None:
        self.messages, self.steps, self.tag, self.device = messages, steps, tag, device
        self.shapes = shapes
        self._coming: list[Coming] = []

    def ask(self) -> None:
        floating = [shape for shape in self.shapes if getattr(torch, shape[2]).is_floating_point]
        self._coming = [self.messages.expect(floating, step, self.device, self.tag) for step in self.steps]

    def sums(self) -> list[Tensor | None]:
        """Over the processes, in the order of the tensors; None for those that have no gradient."""
        if not self._coming:
            self.ask()
        coming, self._coming = self._coming, []
        for one in coming:
            one.wait()
        found = {name: sum(one.tensors[name] for one in coming) for name in coming[0].tensors}
        return [found.get(name) for name, _, _ in self.shapes]  # type: ignore[misc]


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
    def forward(
        ctx: Any, messages: Messages, anchor: Tensor, step: int, tag: int, coming: Coming, *places: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.messages, ctx.step, ctx.tag = messages, step, tag
        coming.wait()
        ctx.mark_dirty(*places)
        ctx.mark_non_differentiable(*(place for place in places if not place.is_floating_point()))
        ctx.differentiable = [place.is_floating_point() for place in places]
        return places

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        for gradient, differentiable in zip(gradients, ctx.differentiable, strict=True):
            if differentiable:
                ctx.messages.post(gradient, ctx.step, ctx.tag)
        return None, None, None, None, None, *[None] * len(gradients)


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, answers: Answers, through: Tensor, *tensors: Tensor) -> Tensor:
        ctx.answers = answers
        for step in answers.steps:
            for tensor in tensors:
                answers.messages.post(tensor, step, answers.tag)
        return through.view_as(through)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return None, gradient, *ctx.answers.sums()


class _Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: list[Answers], y: Tensor) -> Tensor:
        ctx.sent = sent
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        for answers in ctx.sent:
            answers.ask()
        return None, gradient
