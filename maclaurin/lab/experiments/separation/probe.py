"""All that is asked of one mechanism: does it separate, how large must the needle be by the length of the context, and how
much noise on the values does it outlast?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from maclaurin.lab.experiments.draws import slope
from maclaurin.lab.experiments.separation import networks as two_rows
from maclaurin.lab.experiments.separation.networks import MARGIN, Masses, Score, Setting, masses
from maclaurin.lab.mechanisms import Attention

LENGTHS = (1e2, 1e3, 1e4, 1e5, 1e6)
FAR = (1e22, 1e24)  # where the growth of a1* has settled; the two-row formula does not mind
NOISE_LENGTHS = (1e2, 1e3, 1e4, 1e5)
SMALLEST_A = 0.02
PRECISION = 1e-5


def threshold(attention: Attention, setting: Setting) -> float | None:
    """a1*: the smallest a1 at which half of all networks succeed, by bisection; None if there is none below 10 n."""

    on_D0, _ = two_rows.tables(attention, setting)

    def succeeds(a1: float) -> bool:
        on_D1 = two_rows.fires(setting, a1, masses(attention, setting.n, a1, setting.scale))
        return two_rows.probabilities(setting, on_D0, on_D1).success >= 0.5

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


def growth(lengths: Sequence[float], thresholds: Sequence[float | None]) -> float | None:
    found = [threshold for threshold in thresholds if threshold is not None]
    return slope(lengths, found) if len(found) == len(lengths) else None


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


@dataclass(frozen=True)
class Report:
    """verdict: separates, noisy, blind, weak or "does not apply". needle: masses on that of D1.

    thresholds, predicted: a1* at LENGTHS. growth: its exponent where it has settled; growth_seen: from 10⁵ to 10⁶.
    d_primes: at NOISE_LENGTHS. lost_at: the length at which d' falls to 1. What cannot be had is None or empty.
    """

    score: Score
    verdict: str
    notes: Sequence[str]
    needle: Masses | None = None
    thresholds: Sequence[float | None] = ()
    predicted: Sequence[float | None] = ()
    growth: float | None = None
    growth_seen: float | None = None
    d_primes: Sequence[float] = ()
    lost_at: float | None = None

    @property
    def inverted(self) -> bool:
        """The needle's own row looks at it less than at any other token."""
        return self.needle is not None and self.needle.needle < (1 - 1e-6) / self.score.setting.n


def probe(attention: Attention, setting: Setting, *, networks: int = 1000, seed: int = 0, noise: float = 0.1) -> Report:
    """Any attention(Q, K, V) in which every token sees every token, such as `mechanism` gives by name."""
    found = two_rows.score(attention, setting, networks, seed)
    notes = []
    if not two_rows.normalised(attention):
        notes.append("its rows do not sum to one, as the threshold supposes")
    if not two_rows.sees_magnitude(attention):
        notes.append("it is blind to the length of a key, and the needle is coded in nothing else")
    verdict = "does not apply" if notes else found.verdict
    if found.tied:
        notes.append("sums of signs tie with the threshold: rounding decides")
    if not two_rows.separable(attention):
        notes.append("its weights depend on all keys at once: success is that of the network written out, lengths unknown")
        return Report(found, verdict, notes)
    report = Report(found, verdict, notes, masses(attention, setting.n, setting.a1, setting.scale))
    if verdict == "does not apply":
        return report
    if report.inverted:
        notes.append("inverted: below uniform")
    thresholds, far = ([threshold(attention, at_length(setting, n)) for n in lengths] for lengths in (LENGTHS, FAR))
    return replace(
        report,
        thresholds=thresholds,
        predicted=[predicted_threshold(attention, at_length(setting, n)) for n in LENGTHS],
        growth=growth(FAR, far),
        growth_seen=growth(LENGTHS[-2:], thresholds[-2:]),
        d_primes=[d_prime(attention, at_length(setting, n), noise) for n in NOISE_LENGTHS],
        lost_at=lost_at(attention, setting, noise),
    )


def at_length(setting: Setting, n: float) -> Setting:
    """n tokens, or as near to it as repeats of the columns allow."""
    columns = setting.d - 2
    return replace(setting, n=n if n >= 2**53 else max(round(n / columns), 1) * columns)
