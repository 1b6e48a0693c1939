"""Sequences in the order in which a run sees them, whatever the number of processes.

A step has the same sequences on one process as on many, so that losses agree and a run can go on with another number of
them. Where sequences do not fill the last step of an epoch, items are blank: the process that gets nothing else computes a
loss over no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Blank:
    """Stands for no sequence; `row` gives the shape of a batch that has nothing else."""

    row: Any


class Filled(Dataset[Any]):
    """All rows once, in their order, and blanks until their number is a multiple of `multiple`."""

    def __init__(self, rows: Any, multiple: int) -> None:
        self.rows, self.count = rows, -(-len(rows) // multiple) * multiple

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] if index < len(self.rows) else Blank(self.rows[0])


class Epochs(Dataset[Any]):
    """Item i is the i-th sequence of a run of so many steps: epoch after epoch, each in an order of its own.

    The order depends on the seed and the epoch alone, so that a run that goes on with more steps goes on exactly.
    """

    def __init__(self, rows: Any, *, steps: int, per_step: int, seed: int) -> None:
        self.filled, self.seed = Filled(rows, per_step), seed
        self.count = steps * per_step

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        epoch, place = divmod(index, len(self.filled))
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        order = self._epoch[1]
        return self.filled[int(order[place]) if place < len(order) else place]

    @cached_property
    def _epoch(self) -> tuple[int, Tensor]:
        return 0, self._order(0)

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator(device="cpu").manual_seed(self.seed + epoch)
        return torch.randperm(len(self.filled.rows), generator=generator, dtype=torch.long, device="cpu")


class Shared(Dataset[Any]):
    """The same batches for `times` processes that follow one another, of which there are `processes` in all.

    Batches of `batch_size` items go to the processes in turn: that is how a DataLoader is shared out.
    """

    def __init__(self, rows: Any, *, batch_size: int, processes: int, times: int) -> None:
        self.rows, self.batch_size, self.processes, self.times = rows, batch_size, processes, times

    def __len__(self) -> int:
        return len(self.rows) * self.times

    def __getitem__(self, index: int) -> Any:
        batch, place = divmod(index, self.batch_size)
        turn, process = divmod(batch, self.processes)
        own = turn * (self.processes // self.times) + process // self.times
        return self.rows[own * self.batch_size + place]


@dataclass(frozen=True)
class WithoutBlanks:
    """Collates the sequences of a batch. A batch of blanks alone has the first one's row, without labels."""

    collate: Callable[[Sequence[Any]], Any]

    def __call__(self, items: Sequence[Any]) -> Any:
        rows = [item for item in items if not isinstance(item, Blank)]
        if rows:
            return self.collate(rows)
        batch = self.collate([items[0].row])
        return {**batch, "labels": torch.full_like(batch["labels"], -100)}
