"""What a task is: examples from a seed, the same on every call and however many are drawn at a time.

Examples come in blocks. Block b of a seed is drawn by a generator of its own, seeded with (seed, b), so example i of a
seed is the same whether it is drawn alone, in a batch or among all others; nothing is kept between calls. Train
and test sets are different seeds.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from maclaurin.common.arguments import at_least, one_of

NOT_ASKED = -100  # what PyTorch's cross entropy ignores


@dataclass(frozen=True)
class Batch:
    """Sequences with answers at some of their positions."""

    tokens: Tensor  # (N, T) int64
    targets: Tensor  # (N, T) int64: the answer asked for at this position, or -100


@dataclass(frozen=True)
class Labelled:
    """Inputs with one answer each."""

    inputs: (
        Tensor  # tokens (N, T) or, for pairs, (N, 2, T) int64; pixels (N, height, width) uint8; vectors (N, T, d) float32
    )
    labels: Tensor  # (N,) int64, or float32 where a number is asked for
    lengths: Tensor | None = None  # (N,) or, for pairs, (N, 2) int64 where tokens are padded on the right with 0


Examples = TypeVar("Examples", Batch, Labelled)


class Task(ABC, Generic[Examples]):
    """A source of examples. Subclasses are frozen dataclasses that check their fields in `__post_init__`."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens, or the values of pixels, are below this; 0 where inputs are vectors."""

    @property
    def num_classes(self) -> int:
        """Answers are below this; 0 where a number is asked for."""
        return self.vocab_size

    @property
    def chance(self) -> float:
        """The accuracy of one who knows which answers there are, but not which is right; 0 where a number is asked for."""
        return 1 / self.num_classes if self.num_classes else 0.0

    @property
    def block(self) -> int:
        """How many examples share a generator."""
        return 256

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Examples:
        """`count` fresh examples."""

    def sample(self, count: int, seed: int, start: int = 0) -> Examples:
        """Examples `start` to `start + count` of a seed."""
        at_least(1, "count", count)
        at_least(0, "seed", seed)
        at_least(0, "start", start)
        first, last = start // self.block, (start + count - 1) // self.block
        blocks = [self.draw(self.block, np.random.default_rng((seed, block))) for block in range(first, last + 1)]
        offset = start - first * self.block
        return rows(join(blocks), slice(offset, offset + count))

    def batches(self, size: int, seed: int) -> Iterator[Examples]:
        """All examples of a seed, `size` at a time, without end."""
        at_least(1, "size", size)
        chunk = size * -(-self.block // size)
        start = 0
        while True:
            examples = self.sample(chunk, seed, start)
            for offset in range(0, chunk, size):
                yield rows(examples, slice(offset, offset + size))
            start += chunk


def mixture(parts: Sequence[tuple[Task[Examples], int]], size: int, seed: int) -> Iterator[Examples]:
    """Batches of several tasks, without end: an epoch is the first `count` examples of each (task, count), each batch of one
    task, in a random order.
    """
    at_least(1, "size", size)
    starts = [(task, count, start) for task, count in parts for start in range(0, count, size)]
    for epoch in itertools.count():
        for chosen in np.random.default_rng((seed, epoch)).permutation(len(starts)):
            task, count, start = starts[chosen]
            yield task.sample(min(size, count - start), seed, start)


class Store(Protocol):
    """Stored examples."""

    def __len__(self) -> int: ...

    def take(self, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Labelled: ...


class StoredTask(Task[Labelled]):
    """A fixed set of examples, such as a dataset of images. An epoch goes through all of them in an order of its own."""

    split: str
    splits: ClassVar[Sequence[str]] = ("train", "validation", "test")

    @abstractmethod
    def load(self) -> Store:
        """All examples of the split, in an order that never changes."""

    @cached_property
    def stored(self) -> Store:
        """The split, read when it is first needed."""
        return self.load()

    def __len__(self) -> int:
        return len(self.stored)

    def once(self, size: int) -> Iterator[Labelled]:
        """Every example of the split once, in order, `size` at a time."""
        at_least(1, "size", size)
        for start in range(0, len(self), size):
            yield self.stored.take(np.arange(start, min(start + size, len(self))))

    def sample(self, count: int, seed: int, start: int = 0) -> Labelled:
        """Examples `start` to `start + count` of the epochs of a seed."""
        at_least(1, "count", count)
        at_least(0, "seed", seed)
        at_least(0, "start", start)
        epochs = range(start // len(self), (start + count - 1) // len(self) + 1)
        order = np.concatenate([np.random.default_rng((seed, epoch)).permutation(len(self)) for epoch in epochs])
        offset = start - epochs[0] * len(self)
        return self.stored.take(order[offset : offset + count])

    def draw(self, count: int, rng: np.random.Generator) -> Labelled:
        return self.stored.take(rng.integers(len(self), size=count))

    def __post_init__(self) -> None:
        one_of("split", self.split, self.splits)


def rows(examples: Examples, chosen: slice) -> Examples:
    """Some of the examples."""
    columns = {field.name: getattr(examples, field.name) for field in fields(examples)}
    return replace(examples, **{name: column[chosen] for name, column in columns.items() if column is not None})


def join(parts: Sequence[Examples]) -> Examples:
    """All examples of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(parts[0]) if getattr(parts[0], field.name) is not None]
    return replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})
