"""What the tensors of an operator must be, so that no kernel reads or writes beside them: float32, on the CPU, of one size.

A shape is a word of the letters in a file's legend, such as "BTHK": the same letter is the same size in every tensor. "|"
stands between alternatives, "0" for an empty tensor. What a call of one layout was told once is not looked at again.
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
Layout = tuple[torch.Size, torch.dtype, torch.device]

REMEMBERED = 256  # layouts of an operator


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
        tensors = arguments[: self.tensors]
        self._fit(tuple([None if x is None else (x.shape, x.dtype, x.device) for x in tensors]), arguments[self.tensors :])

    def _look(self, layouts: tuple[Layout | None, ...], options: tuple[Any, ...]) -> None:
        sizes: Sizes = dict(zip(self.names[self.tensors :], options, strict=True))
        given = dict(zip(self.names, layouts, strict=False))
        for name, shape in self.shapes.tensors.items():
            if (layout := given.get(name)) is not None:
                self._check_tensor(name, layout, shape if isinstance(shape, str) else shape(sizes), sizes)
        for sentence, holds in self.shapes.rules.items():
            if not holds(sizes):
                found = ", ".join(f"{key} = {value}" for key, value in sizes.items())
                raise ValueError(f"{self.operator} needs {sentence}, got {found}")

    def _check_tensor(self, name: str, layout: Layout, words: str, sizes: Sizes) -> None:
        found, dtype, device = layout
        if dtype is not torch.float32 or device.type != "cpu":
            raise TypeError(f"{name} of {self.operator} must be float32 on the CPU, got {dtype} on {device}")
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
