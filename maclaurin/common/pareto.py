"""The best that can be had for a price."""

from __future__ import annotations

from collections.abc import Sequence


def pareto(points: Sequence[tuple[float, float]], *, lower: bool) -> list[int]:
    """The places of the points (cost, value), by cost, for which no other that costs as little has as good a value."""
    sign = 1 if lower else -1
    found: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place][0], sign * points[place][1])):
        if not found or sign * points[place][1] < sign * points[found[-1]][1]:
            found.append(place)
    return found
