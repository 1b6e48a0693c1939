"""Curves that lie on each other: which they are, and a sentence that names them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH_OF_A_LINE = 0.01  # of the height of a plot

Points = Mapping[float, float]  # x -> y


def depths(curves: Sequence[Points], *, log: bool) -> list[tuple[int, int]]:
    """Of every curve, how many of those that it coincides with are drawn before it, and how many after it."""
    met = _met(curves, log)
    return [(sum(other < place for other in own), sum(other > place for other in own)) for place, own in enumerate(met)]


def sentence(curves: Mapping[str, Points], *, log: bool = False) -> str:
    """Which of the curves lie on each other, with a space before it; empty if none do."""
    names = list(curves)
    stacks = [own for place, own in enumerate(_met(list(curves.values()), log)) if own[0] == place and len(own) > 1]
    texts = [" and ".join(", ".join(names[place] for place in own).rsplit(", ", 1)) for own in stacks]
    return f" Lines on each other, the wider ones below: {'; '.join(texts)}." if texts else ""


def _met(curves: Sequence[Points], log: bool) -> list[list[int]]:
    """The places of the curves that each coincides with, its own among them."""
    heights = [{x: math.log(max(y, 1e-300)) if log else y for x, y in points.items()} for points in curves]
    values = [y for points in heights for y in points.values()]
    near = WIDTH_OF_A_LINE * (max(values, default=0.0) - min(values, default=0.0))
    return [[place for place, other in enumerate(heights) if own is other or _coincide(own, other, near)] for own in heights]


def _coincide(one: Points, other: Points, near: float) -> bool:
    """Whether most of the points that both have are closer than a line is wide."""
    gaps = [abs(y - other[x]) for x, y in one.items() if x in other]
    return bool(gaps) and sum(gap <= near for gap in gaps) > len(gaps) / 2
