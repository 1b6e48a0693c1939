"""One case: a function of a target's name and an integer, drawn from one stream of random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

V = TypeVar("V")

RIGHT, REFUSED = "right", "refused"  # how a case may end; anything that it raises is a failure
READY = "ready"  # what a worker says before its first case
LONGEST_SENTENCE = 1000


class Failure(AssertionError):  # noqa: N818 - it is what the search looks for
    """A law that did not hold."""


class Draw(random.Random):
    """The random numbers of one case. What was chosen by name is kept, to be told with a failure."""

    def __init__(self, target: str, number: int) -> None:
        super().__init__(f"{target}:{number}")
        self.chosen: dict[str, Any] = {}

    def note(self, name: str, value: V) -> V:
        self.chosen[name] = value
        return value

    def one(self, name: str, options: Sequence[V]) -> V:
        return self.note(name, self.choice(options))

    def chance(self, share: float) -> bool:
        return self.random() < share


@dataclass(frozen=True)
class Target:
    """What is searched: `module:function`, imported where it runs, and its share of the time."""

    name: str
    where: str
    share: float = 1.0
    arguments: tuple[Any, ...] = ()

    def load(self) -> Callable[[Draw], str]:
        module, function = self.where.split(":")
        run = getattr(import_module(module), function)
        return lambda draw: run(draw, *self.arguments)


def check_sentence(error: BaseException) -> None:
    """A refusal is one sentence; what a library printed or a list of lines is not."""
    text = str(error).strip()
    if not text or "\n" in text or len(text) > LONGEST_SENTENCE:
        raise Failure(f"refused, but not in one sentence: {type(error).__name__}: {text!r}") from error
