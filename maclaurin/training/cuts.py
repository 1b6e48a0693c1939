"""How the sequences of a run are cut in time: over processes, or one slice after the other in each."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed

from maclaurin.distributed import sequence_parallel, slice_of
from maclaurin.distributed.slices import even_bounds


@dataclass(frozen=True)
class Cut:
    """processes: that have slices of the same sequences, this one among them in `group`. chunks: slices of each process."""

    processes: int = 1
    chunks: int = 1
    group: distributed.ProcessGroup | None = None
    exchange: str = "chain"

    @staticmethod
    def of(processes: int, chunks: int, world_size: int, exchange: str = "chain", timeout: timedelta | None = None) -> Cut:
        """For this process; all of the world must call it. Those that follow one another share sequences."""
        if processes == 1:
            if chunks > 1 and world_size > 1:
                raise ValueError(
                    f"sequence_chunks needs a run of one process, got {world_size}: use sequence_parallel there"
                )
            return Cut(chunks=chunks)
        if world_size % processes:
            raise ValueError(f"sequence_parallel must divide the {world_size} processes of the run, got {processes}")
        groups = [list(range(first, first + processes)) for first in range(0, world_size, processes)]
        own, _ = distributed.new_subgroups_by_enumeration(groups, timeout=timeout)
        return Cut(processes=processes, group=own, exchange=exchange)

    def handing_over(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.group is None else sequence_parallel(self.group, self.exchange)

    def own(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The slice of this process."""
        if self.group is None:
            return batch
        bounds, place = even_bounds(batch["input_ids"].shape[1], self.processes), distributed.get_rank(self.group)
        return slice_of(batch, bounds[place], bounds[place + 1])


WHOLE = Cut()
