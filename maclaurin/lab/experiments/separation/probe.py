"""All that is asked of one mechanism: does it separate, why, up to which length, and may one ask at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from maclaurin.lab.experiments.separation.formulas import Masses, Setting, masses, normalised, sees_magnitude, separable
from maclaurin.lab.experiments.separation.growth import d_prime, lost_at, predicted_threshold, slope, threshold
from maclaurin.lab.experiments.separation.networks import Score, score
from maclaurin.lab.mechanisms import Attention

LENGTHS = (1e2, 1e3, 1e4, 1e5, 1e6)
FAR = (1e22, 1e24)  # where the growth of a1* has settled; the two-row formula does not mind
NOISE_LENGTHS = (1e2, 1e3, 1e4, 1e5)


@dataclass(frozen=True)
class Report:
    """verdict: separates, noisy, blind, weak or "does not apply". needle, plain: masses on the needle of D1 and of D0.

    thresholds, predicted: a1* at LENGTHS. growth: its exponent where it has settled; growth_seen: from 10⁵ to 10⁶.
    d_primes: at NOISE_LENGTHS. lost_at: the length at which d' falls to 1. What cannot be had is None or empty.
    """

    score: Score
    verdict: str
    needle: Masses | None
    plain: Masses | None
    thresholds: Sequence[float | None]
    predicted: Sequence[float | None]
    growth: float | None
    growth_seen: float | None
    d_primes: Sequence[float]
    lost_at: float | None
    notes: Sequence[str]

    @property
    def inverted(self) -> bool:
        """The needle's own row looks at it less than at any other token."""
        return self.needle is not None and self.needle.needle < (1 - 1e-6) / self.score.setting.n


def probe(attention: Attention, setting: Setting, *, networks: int = 1000, seed: int = 0, noise: float = 0.1) -> Report:
    """Any attention(Q, K, V) in which every token sees every token, such as a `Mechanism`."""
    found = score(attention, setting, networks, seed)
    notes = []
    if not normalised(attention):
        notes.append("its rows do not sum to one, as the threshold supposes")
    if not sees_magnitude(attention):
        notes.append("it is blind to the length of a key, and the needle is coded in nothing else")
    verdict = "does not apply" if notes else found.verdict
    if found.tied:
        notes.append("sums of signs tie with the threshold: rounding decides")
    if not separable(attention):
        notes.append("its weights depend on all keys at once: success is that of the network written out, lengths unknown")
        return Report(found, verdict, None, None, (), (), None, None, (), None, notes)
    plain, needle = (masses(attention, setting.n, a, setting.scale) for a in setting.needles)
    if verdict == "does not apply":
        return Report(found, verdict, needle, plain, (), (), None, None, (), None, notes)
    thresholds = [threshold(attention, at_length(setting, n)) for n in LENGTHS]
    far = [threshold(attention, at_length(setting, n)) for n in FAR]
    report = Report(
        found,
        verdict,
        needle,
        plain,
        thresholds,
        [predicted_threshold(attention, at_length(setting, n)) for n in LENGTHS],
        slope(FAR, far),
        slope(LENGTHS[-2:], thresholds[-2:]),
        [d_prime(attention, at_length(setting, n), noise) for n in NOISE_LENGTHS],
        lost_at(attention, setting, noise),
        notes,
    )
    return replace(report, notes=[*notes, "inverted: below uniform"]) if report.inverted else report


def at_length(setting: Setting, n: float) -> Setting:
    """n tokens, or as near to it as repeats of the columns allow."""
    columns = setting.d - 2
    return replace(setting, n=n if n >= 2**53 else max(round(n / columns), 1) * columns)
