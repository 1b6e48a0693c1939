"""How large the needle must be, by the length of the context; and how much noise on the values it outlasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from maclaurin.lab.experiments.separation.formulas import MARGIN, Setting, fires, masses, probabilities, tables
from maclaurin.lab.mechanisms import Attention

SMALLEST_A = 0.02
PRECISION = 1e-5


def threshold(attention: Attention, setting: Setting) -> float | None:
    """a1*: the smallest a1 at which half of all networks succeed, by bisection; None if there is none below 10 n."""

    on_D0, _ = tables(attention, setting)

    def succeeds(a1: float) -> bool:
        on_D1 = fires(setting, a1, masses(attention, setting.n, a1, setting.scale))
        return probabilities(setting, on_D0, on_D1).success >= 0.5

    return _first(succeeds, SMALLEST_A, 10 * setting.n)


def predicted_threshold(attention: Attention, setting: Setting) -> float | None:
    """The same from the mean of S alone: the row that looks at the needle most must read p (a + b) >= 0.1."""

    def succeeds(a: float) -> bool:
        found = masses(attention, setting.n, a, setting.scale)
        return (found.generic if setting.cross else found.needle) * (a + setting.b) >= MARGIN

    return _first(succeeds, SMALLEST_A, 10 * setting.n)


def _first(holds: Callable[[float], bool], low: float, largest: float) -> float | None:
    """Where a statement becomes true: the first step of a geometric walk at which it is, then bisection."""
    high = low
    while not holds(high):
        low, high = high, 1.5 * high
        if high > largest:
            return None
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def slope(n: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Of log value against log n, between the first and the last."""
    first, last = values[0], values[-1]
    if first is None or last is None:
        return None
    return math.log(last / first) / math.log(n[-1] / n[0])


def d_prime(attention: Attention, setting: Setting, noise: float) -> float:
    """How far D0 and D1 are apart at the needle's row and channel, in standard deviations, if N(0, noise²) is added to all
    values: √(log n)(a1 p1 - a0 p0)/(noise·√(mean of Σ f²)).
    """
    n = setting.n
    signal, squares = 0.0, 0.0
    for a, sign in zip(setting.needles, (-1, 1), strict=True):
        found = masses(attention, n, a, setting.scale)
        p = found.generic if setting.cross else found.needle
        signal += sign * a * p
        squares += (p * p + (1 - p) ** 2 / (n - 1)) / 2
    return setting.unit * signal / (noise * math.sqrt(squares))


def lost_at(attention: Attention, setting: Setting, noise: float, longest: float = 1e12) -> float | None:
    """The length at which d' falls to 1: the needle is lost in the noise. None if not below `longest`."""

    def lost(n: float) -> bool:
        whole = round(n) * (setting.d - 2)
        return d_prime(attention, replace(setting, n=whole), noise) < 1

    found = _first(lost, 2.0, longest / (setting.d - 2))
    return None if found is None else round(found) * (setting.d - 2)
