"""What the tensors of an operator must be, so that no kernel reads or writes beside them: float32, on the CPU, of one size.

A shape is a word of the letters in a file's legend, such as "BTHK": the same letter is the same size in every tensor. "|"
stands between alternatives, "0" for an empty tensor. Shapes that were right once are not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

Sizes = dict[str, Any]  # by letter, and options by name
Shape = str | Callable[[Sizes], str]  # depends on options where it is a function

REMEMBERED = 256  # sets of shapes that an operator has been called with


@dataclass(frozen=True)
class Shapes:
    """The tensors of some operators, by name, in the order in which they are looked at: the first ones define the letters.

    derived: letters that follow from others. rules: what must hold besides, each with the words that say so.
    """

    tensors: Mapping[str, Shape]
    derived: Mapping[str, Callable[[Sizes], int]] = field(default_factory=dict)
    rules: Mapping[str, Callable[[Sizes], bool]] = field(default_factory=dict)


class Layouts:
    """The tensors of one operator, whose schema has them first and options behind them."""

    def __init__(self, schema: str, shapes: Shapes) -> None:
        name, arguments = re.match(r"(\w+)\((.*?)\)", schema).groups()  # type: ignore[union-attr]
        self.operator = f"maclaurin::{name}"
        self.names = [argument.split()[-1] for argument in arguments.split(", ")]
        self.tensors = arguments.count("Tensor")
        self.shapes = shapes
        self._fit = lru_cache(REMEMBERED)(self._look)

    def check(self, arguments: tuple[Any, ...]) -> None:
        shapes: list[torch.Size | None] = []
        for x in arguments[: self.tensors]:
            if x is None:
                shapes.append(None)
            elif x.dtype is torch.float32 and x.is_cpu:
                shapes.append(x.shape)
            else:
                name = self.names[len(shapes)]
                raise TypeError(f"{name} of {self.operator} must be float32 on the CPU, got {x.dtype} on {x.device}")
        self._fit(tuple(shapes), arguments[self.tensors :])

    def _look(self, shapes: tuple[torch.Size | None, ...], options: tuple[Any, ...]) -> None:
        sizes: Sizes = dict(zip(self.names[self.tensors :], options, strict=True))
        given = dict(zip(self.names, shapes, strict=False))
        for name, shape in self.shapes.tensors.items():
            if (found := given.get(name)) is not None:
                self._check_shape(name, found, shape if isinstance(shape, str) else shape(sizes), sizes)
        for sentence, holds in self.shapes.rules.items():
            if not holds(sizes):
                found = ", ".join(f"{key} = {value}" for key, value in sizes.items())
                raise ValueError(f"{self.operator} needs {sentence}, got {found}")

    def _check_shape(self, name: str, found: torch.Size, words: str, sizes: Sizes) -> None:
        word = next((word for word in words.split("|") if len(word) == len(found)), None)
        if word is not None:
            expected = [self._size(letter, size, sizes) for letter, size in zip(word, found, strict=True)]
            if expected == list(found):
                return
        known = "".join(f", {letter} = {sizes[letter]}" for letter in dict.fromkeys(word or "") if letter in sizes)
        wanted = " or ".join(f"({', '.join(word)})" for word in words.split("|"))
        raise ValueError(f"{name} of {self.operator} must have shape {wanted}{known}, got {tuple(found)}")

    def _size(self, letter: str, size: int, sizes: Sizes) -> int:
        """What a letter stands for, which is `size` where it is seen for the first time."""
        if letter == "0":
            return 0
        if letter not in sizes:
            sizes[letter] = self.shapes.derived[letter](sizes) if letter in self.shapes.derived else size
        return int(sizes[letter])
