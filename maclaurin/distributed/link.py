"""What a mixer gives to other processes of its group and takes from them, in the forward alone.

A checkpointed layer computes its forward again in the backward. What it has given is there already, and what it has taken
is kept, so that nothing is exchanged twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, distributed

from maclaurin.distributed.messages import Coming, Group, Messages, Shape, described
from maclaurin.mixers.base import Mixer

STATE, AHEAD, GIVEN, DONE = range(4)  # tags of messages: `chain.py`, and `balance.py` for the last two
Key = tuple[Mixer, int, int]  # of whom, from where, about what

# of the states of constant size that a mixer gives
_shapes: WeakKeyDictionary[Mixer, tuple[object, list[Shape]]] = WeakKeyDictionary()


class Link:
    """Of one process to those of its group, by their distance to it."""

    def __init__(self, group: Group, exchange: str) -> None:
        self.messages, self.exchange = Messages(group), exchange
        self.rank, self.size = self.messages.rank, self.messages.size
        self._expected: dict[Key, Coming] = {}
        self._taken: dict[Key, dict[str, Tensor]] = {}  # the last time, for a forward that is done again
        self._alike: dict[Mixer, bool] = {}  # the same

    def take(self, mixer: Mixer, step: int, tag: int, device: torch.device) -> dict[str, Tensor]:
        if not _is_recomputed():
            coming = self._expected.pop((mixer, step, tag), None) or self.messages.expect_described(step, device, tag)
            self._taken[mixer, step, tag] = self.messages.arrived(coming, step, tag)
        return self._taken[mixer, step, tag]

    def all_have(self, mixer: Mixer, number: int, device: torch.device) -> bool:
        """Whether all processes give the same number for the mixer."""
        if not _is_recomputed():
            numbers = torch.empty(self.size, dtype=torch.long, device=device)
            own = torch.full((1,), number, dtype=torch.long, device=device)
            distributed.all_gather_into_tensor(numbers, own, group=self.messages.group)
            self._alike[mixer] = numbers.tolist() == [number] * self.size
        return self._alike[mixer]

    def give(
        self, through: Tensor, tensors: Mapping[str, Tensor], steps: Sequence[int], tag: int, *, described_too: bool = True
    ) -> Tensor:
        if not steps or _is_recomputed():
            return through
        return self.messages.send(through, tensors, steps, tag, described_too=described_too)

    def expect_alike(self, mixer: Mixer, x: Tensor, steps: Iterable[int]) -> None:
        """Lets states come while this process makes its own, where it is known from the last time what they look like."""
        before, shapes = _shapes.get(mixer, (None, []))
        if before == self._looks(x):
            self._expect(mixer, shapes, steps, x.device)

    def are_alike(self, mixer: Mixer, x: Tensor, own: Mapping[str, Tensor], steps: Iterable[int]) -> None:
        """States that come look like this one."""
        if _shapes.get(mixer, (None, []))[0] != self._looks(x):
            _shapes[mixer] = self._looks(x), described(own)
            self._expect(mixer, described(own), steps, x.device)

    def _expect(self, mixer: Mixer, shapes: Sequence[Shape], steps: Iterable[int], device: torch.device) -> None:
        if not _is_recomputed():
            for step in steps:
                self._expected[mixer, step, STATE] = self.messages.expect(shapes, step, device, STATE)

    def asking(self, y: Tensor) -> Tensor:
        return y if _is_recomputed() else self.messages.asking(y)

    def _looks(self, x: Tensor) -> object:
        """All that the shapes of the states depend on."""
        kind = x.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return self.exchange, x.shape[0], x.dtype, autocast


def _is_recomputed() -> bool:
    """Whether a checkpointed layer computes its forward again, in the backward."""
    return torch._C._current_graph_task_id() != -1
