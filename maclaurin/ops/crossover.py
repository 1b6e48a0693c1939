"""Up to how many queries the direct sum over all keys is the faster form, by backend: measured, in this one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    start: int
    per_feature: float


# `python -m benchmarks` prints the times of both forms that these come from. The native start is two chunks, because a
# chunk meets its own keys directly in any case; its slope is that of the multiplications, 2 features (V+1) against T·V.
DIRECT_QUERIES = {"torch": Line(0, 0.25), "native": Line(256, 1.8)}


def longest_direct(backend: str, features: int) -> int:
    """The largest number of queries for which the direct sum beats a memory of so many features."""
    line = DIRECT_QUERIES[backend]
    return line.start + int(line.per_feature * features)
