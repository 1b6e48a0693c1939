"""Sequences of a corpus that is tokenised while a model trains on it.

The corpus is divided into blocks: the first has 256 sequences, each following one twice as many as the one before, and none
more than 65536. Sequences come block by block, in a random order within each, which depends on the seed, the epoch and the
block alone: neither on how far the cache is, nor on how many steps a run has. While one block is read, the next is
tokenised. Once the corpus ends it begins again, in a new order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from maclaurin.data.entry import TokenFile
from maclaurin.data.growing import Growing
from maclaurin.data.rows import DocumentRows, PackedRows

FIRST_BLOCK, LARGEST_BLOCK = 256, 2**16  # sequences
PATIENCE = 5  # seconds that the end of a process waits for the piece that is being tokenised


class StreamedRows(Dataset[Any]):
    """Item i is the i-th sequence that training sees, `count` in all.

    tokens: only the first so many tokens of the corpus are used; 0 for no bound.
    """

    def __init__(
        self,
        entry: Growing,
        kind: type[PackedRows] | type[DocumentRows],
        length: int,
        *,
        count: int,
        seed: int,
        tokens: int = 0,
    ) -> None:
        if 0 < tokens < length:
            raise ValueError(f"tokens must be at least the {length} of one sequence, or 0 for all, got {tokens}")
        self.entry, self.count, self.seed = entry, count, seed
        self.rows = _Rows(kind, length, tokens)
        self.collate: Callable[[list[Any]], Any] = kind.collate
        # what is trained on is taken from the entry where training is, not where the thread that tokenises is
        self._file, self._ended = entry.file, entry.ended
        self._order = (-1, -1), np.empty(0, np.int64)
        self._ahead = _Ahead()
        weakref.finalize(self, self._ahead.stop)

    def __reduce__(self) -> Any:
        """For the workers of a DataLoader that are new processes."""
        rows = self.rows
        make = partial(StreamedRows, count=self.count, seed=self.seed, tokens=rows.tokens)
        return make, (self.entry, rows.kind, rows.length)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(f"index must be below the {self.count} sequences of this run, got {index}")
        epoch, place = self._placed(index)
        start, stop = block(place)
        if self._order[0] != (epoch, start):
            size = min(stop, self.rows.count(self._file)) - start
            self._order = (epoch, start), np.random.default_rng((self.seed, epoch, start)).permutation(size)
        return self.rows.of(self._file)[start + int(self._order[1][place - start])]

    def _placed(self, index: int) -> tuple[int, int]:
        """The epoch of a sequence, and its place in it; its block is then in the cache, and the next one on its way."""
        _, stop = block(index)
        if not self._ended and self.rows.count(self._file) < stop:
            self._ahead.join()
            self.entry.grow(self.rows.has(stop))
            self._file, self._ended = self.entry.file, self.entry.ended or self.rows.reached(self.entry.file)
        if not self._ended:
            if stop < self.count and _looks_ahead():
                self._ahead.start(stop, partial(self.entry.grow, self.rows.has(block(stop)[1]), say=False))
            return 0, index
        total = self.rows.count(self._file)
        if not total:
            raise ValueError(f"the corpus has {len(self._file)} tokens, fewer than one sequence of {self.rows.length}")
        return divmod(index, total)


@dataclass(frozen=True)
class _Rows:
    """The sequences of a token file, as far as they lie within its first `tokens`."""

    kind: type[PackedRows] | type[DocumentRows]
    length: int
    tokens: int

    def of(self, file: TokenFile) -> PackedRows | DocumentRows:
        return self.kind(file, self.length)

    def count(self, file: TokenFile) -> int:
        most = self.tokens or len(file)
        if self.kind is PackedRows:
            return min(most, len(file)) // self.length
        return int(np.searchsorted(file.ends, most, side="right"))

    def reached(self, file: TokenFile) -> bool:
        return 0 < self.tokens <= len(file)

    def has(self, rows: int) -> Callable[[TokenFile], bool]:
        return lambda file: self.count(file) >= rows or self.reached(file)


def block(place: int) -> tuple[int, int]:
    """Where the block of a sequence begins and ends."""
    start, size = 0, FIRST_BLOCK
    while size < LARGEST_BLOCK and place >= start + size:
        start, size = start + size, 2 * size
    start += (place - start) // size * size
    return start, start + size


def _looks_ahead() -> bool:
    """One process a machine is enough: the others find what it has written."""
    worker = get_worker_info()
    return int(os.environ.get("LOCAL_RANK", "0")) == 0 and (worker is None or worker.id == 0)


class _Ahead:
    """One task at a time, beside training. If one fails, whoever needs its result does it again, and fails there."""

    def __init__(self) -> None:
        self._name = -1
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self, name: int, task: Callable[..., None]) -> None:
        """Unless it is the one that was started last."""
        if self._name != name:
            self.join()
            self._name = name
            # no exit waits for it: what a killed task leaves is as good as what a killed process leaves
            self._thread = threading.Thread(target=self._run, args=(task,), daemon=True)
            self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        self._stopped.set()
        self.join(PATIENCE)

    def _run(self, task: Callable[..., None]) -> None:
        with suppress(Exception):
            task(stopped=self._stopped.is_set)
