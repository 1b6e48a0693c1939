"""Where the direct sum over all keys stops being the faster form, by backend: measured, and held in this one place."""

from __future__ import annotations

# Queries for each entry of φ. `python -m benchmarks` prints the times of both forms that these come from.
DIRECT_QUERIES_PER_FEATURE = {"torch": 0.25, "native": 2.0}
# Below it the native direct sum always wins: a chunk meets its own keys directly in any case.
NATIVE_SHORTEST = 512


def longest_direct(backend: str, features: int) -> int:
    """The largest number of queries for which the direct sum is faster than a memory of so many features."""
    limit = int(DIRECT_QUERIES_PER_FEATURE[backend] * features)
    return max(limit, NATIVE_SHORTEST) if backend == "native" else limit
