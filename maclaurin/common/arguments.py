"""What an argument must be, and one sentence that names it where it is not."""

from __future__ import annotations

import sys
from collections.abc import Sequence

LARGEST = 2**62  # twice as many still fit into the kernels' 64 bits


def one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def at_least(smallest: int, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {value}")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most 2**{LARGEST.bit_length() - 1}, got a number of {value.bit_length()} bits")


def at_least_one(name: str, value: object) -> None:
    at_least(1, name, value)


def number(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max):
        raise ValueError(f"{name} must be a finite number or None, got {value!r:.40}")


def positive(name: str, value: float | None) -> None:
    number(name, value)
    if value is None or value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
