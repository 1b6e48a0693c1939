"""What the fields of a state may hold, declared beside each field and read from there:

    keys: Annotated[Tensor, Axes("B S G K")]

A letter is one size within a state, and B, the batch, one size in all the states inside it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64,)
BATCH, SLOTS = "B", "S"  # the sizes that a mechanism leaves open: how many sequences, and how many kept tokens


@dataclass(frozen=True)
class Axes:
    """The sizes of a tensor: "B S G K", or "B G K+1" for one more than K; "B ..." leaves open how many follow.

    later: a state before the first token may not have it yet.
    """

    names: str
    dtypes: tuple[torch.dtype, ...] = FLOATING
    later: bool = False


class Field:
    """One field of a class of states: a tensor, another state, or a name."""

    def __init__(self, name: str, annotation: Any) -> None:
        self.name = name
        axes = Axes("B ...")
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *marks = typing.get_args(annotation)
            axes = next(mark for mark in marks if isinstance(mark, Axes))
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        kinds = typing.get_args(annotation) if is_union else (annotation,)
        self.optional = type(None) in kinds
        self.kinds = tuple(kind for kind in kinds if kind is not type(None))
        self.is_tensor, self.is_name = self.kinds == (Tensor,), self.kinds == (str,)
        self.dtypes = axes.dtypes
        self.later = axes.later or self.is_name
        letters = axes.names.split()
        self.open_ended = letters[-1] == "..."
        if self.open_ended:
            letters.pop()
        self.dims = len(letters)
        self.letters = [letter.removesuffix("+1") for letter in letters]
        self.more = [int(letter.endswith("+1")) for letter in letters]
        self.as_named = not any(self.more) and not self.open_ended

    def binds(self, tensor: Tensor, sizes: dict[str, int]) -> bool:
        """Whether the tensor agrees with the sizes that are known; it adds those that were not."""
        shape: Sequence[int] = tensor.shape
        if tensor.dtype not in self.dtypes or not self.is_tensor:
            return False
        letters = self.letters
        if not self.as_named:
            letters = letters + [f"{self.name} {place}" for place in range(self.dims, len(shape) * self.open_ended)]
            shape = [size - more for size, more in zip_longest(shape, self.more, fillvalue=0)]
        if len(shape) != len(letters):
            return False
        return all(sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=True))

    @property
    def kind(self) -> str:
        """For people: "a tensor or None"."""
        if self.is_name:
            kind = "a name"
        else:
            kind = "a tensor" if Tensor in self.kinds else "a " + " or ".join(kind.__name__ for kind in self.kinds)
        return kind + " or None" * self.optional

    def expected(self, sizes: dict[str, int]) -> str:
        """For people: "a floating point tensor of shape (2, S, 4, 8)"."""
        named = zip(self.letters, self.more, strict=True)
        known = [str(sizes[letter] + more) if letter in sizes else letter + "+1" * more for letter, more in named]
        known += ["..."] * self.open_ended
        kind = "whole numbers (int64)" if self.dtypes == WHOLE else "a floating point tensor"
        return f"{kind} of shape ({', '.join(known)}{',' * (len(known) == 1)})"


_read: dict[type, tuple[Field, ...]] = {}


def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a class of states, in their order. Read once: annotations are slow to resolve."""
    if cls not in _read:
        hints = typing.get_type_hints(cls, include_extras=True)
        _read[cls] = tuple(Field(field.name, hints[field.name]) for field in dataclasses.fields(cls))
    return _read[cls]
