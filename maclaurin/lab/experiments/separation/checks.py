"""The claims of the separation, from measured numbers and the references."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.separation import references
from maclaurin.lab.experiments.separation.formulas import Setting, masses
from maclaurin.lab.experiments.separation.growth import lost_at
from maclaurin.lab.experiments.separation.networks import Score, mismatches, score
from maclaurin.lab.experiments.separation.probe import LENGTHS, NOISE_LENGTHS, Report
from maclaurin.lab.experiments.separation.references import Sweep
from maclaurin.lab.mechanisms import Attention, Mechanism, mechanism

STANDARD_ERRORS = 4.5  # of the largest of some hundred shares; the exact ones differ by less if the draws are right
GROWTH_TOLERANCE = 0.01
Swept = Mapping[str, tuple[Sequence[Score], Sequence[Score]]]  # sweep -> strong, weak


def gates(strong: Mechanism, weak: Mechanism, base: Setting, networks: int, seed: int) -> list[Claim]:
    """Whether there is a separation at all, at the setting that was asked for, and where it must end."""

    def success(mechanism: Mechanism, setting: Setting = base) -> float:
        return score(mechanism, setting, networks, seed).success

    made = [
        claims.at_least("gate", f"share of networks that succeed, {strong.name}", success(strong), 0.98),
        claims.at_most("gate", f"share of networks that succeed, {weak.name}", success(weak), 0.01),
    ]
    if base != Setting():
        return made
    faint = f"the same with a1 = 0.3, {strong.name}: too faint a needle"
    short = f"the same with n = 50, {weak.name}: too short a context"
    return [
        *made,
        claims.at_most("gate", faint, success(strong, replace(base, a1=0.3)), 0.02),
        claims.between("gate", short, success(weak, replace(base, n=50)), 0.33, 0.45),
    ]


def swept(sweeps: Sequence[Sweep], found: Swept, names: tuple[str, str]) -> list[Claim]:
    """The exact probabilities of every point beside the shares of 1000 networks of the reference."""
    made = []
    for sweep in sweeps:
        pairs = zip(found[sweep.key], (sweep.softmax, sweep.linear), names, strict=True)
        for scores, reference, name in pairs:
            gaps = [abs(_exact(one) - expected) for one, expected in zip(scores, reference, strict=True)]
            text = f"success over {sweep.key}, {len(gaps)} points, {name}: largest distance from the reference"
            made.append(claims.at_most(f"1.5 {sweep.key}", text, max(gaps), references.TOLERANCE))
    return made


def _exact(score: Score) -> float:
    return math.nan if score.exact is None else score.exact.success


def draws(scores: Sequence[Score]) -> Claim:
    """Measured shares against exact probabilities: the draws and the formula must be the same network."""
    worst = 0.0
    for one in scores:
        assert one.exact is not None
        q = one.exact.success
        worst = max(worst, abs(one.success - q) / math.sqrt(max(q * (1 - q), 1 / one.networks) / one.networks))
    text = f"drawn networks against exact probabilities, {len(scores)} points: largest distance in standard errors"
    return claims.at_most("1.4", text, worst, STANDARD_ERRORS)


def written_out(attentions: Sequence[Attention], networks: int, seed: int) -> Claim:
    """The two-row formula against the n x n network, needle anywhere, with and without a query of its own."""
    settings = [
        Setting(n=200, a1=0.5),
        Setting(n=100, d=12, c=0.7, a1=2.0),
        Setting(n=400, a1=0.45, m=15),
        Setting(n=100, d=12, a1=3.0, cross=True),
    ]
    needles = (0, 37, 399, 99)
    wrong = sum(
        mismatches(attention, setting, networks, seed, needle)
        for attention in attentions
        for setting, needle in zip(settings, needles, strict=True)
    )
    cases = 2 * networks * len(settings) * len(attentions)
    return claims.at_most("1.5 full network", f"of {cases} full networks, those the two-row formula gets wrong", wrong, 0)


def needle_masses(strong: Attention, weak: Attention) -> list[Claim]:
    """What the ops put on the needle beside the closed forms for exp(s) and s. The query factor cancels in the second."""
    n, sizes = 1000.0, (1.2, 0.7, 0.1, 0.01)
    found = [masses(strong, n, a) for a in sizes]
    lines = [
        ("softmax, generic row", [one.generic for one in found], [n**a / (n - 1 + n**a) for a in sizes]),
        (
            "softmax, needle row",
            [one.needle for one in found],
            [n ** (a * a + a) / (n - 1 + n ** (a * a + a)) for a in sizes],
        ),
        ("linear, every row", [masses(weak, n, a).needle for a in sizes], [(1 + a) / (n + a) for a in sizes]),
        ("softmax, a query of its own, n = 100", [masses(strong, 100, 3).generic], [100**3 / (99 + 100**3)]),
        ("linear, a query of its own, n = 100", [masses(weak, 100, 3).generic], [4 / 103]),
    ]
    return [
        claims.at_most(
            "1.3", f"mass on the needle, {row}: largest relative distance from the closed form", _worst(*both), 1e-6
        )
        for row, *both in lines
    ]


def _worst(measured: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(measured, expected, strict=True))


def scaled(strong: Mechanism, networks: int, seed: int) -> tuple[list[Claim], list[list[float]]]:
    """A factor on the scores hides the effect at the usual a1. Claims, and rows of (g, a1, measured, exact, reference)."""
    made, rows = [], []
    for (scale, a1), expected in references.SCALES.items():
        found = score(strong, Setting(scale=scale, a1=a1), networks, seed)
        text = f"success of {strong.name} with scores times {scale:g}, a1 = {a1:g}"
        made.append(claims.near("1.6 scale", text, _exact(found), expected, references.TOLERANCE))
        rows.append([scale, a1, found.success, _exact(found), expected])
    return made, rows


def thresholds(name: str, report: Report) -> list[Claim]:
    """a1* beside the reference, and its growth beside the theory. A reference is the bisection of drawn networks, whose
    success goes up in steps; two per cent is a step.
    """
    made = []
    reference = references.THRESHOLDS.get("power-2" if name == "2mamba" else name, {})
    if reference:
        found = dict(zip(LENGTHS, report.thresholds, strict=True))
        gaps = [abs((found[n] or math.nan) / expected - 1) for n, expected in reference.items()]
        text = f"a1*(n) of {name}, {len(gaps)} lengths: largest relative distance from the reference"
        made.append(claims.at_most(f"1.6 a1* {name}", text, max(gaps), 0.02))
    if (growth := expected_growth(name)) is not None:
        text = f"growth of a1* with n, {name}: exponent from 10²² to 10²⁴"
        made.append(claims.near(f"1.6 growth {name}", text, report.growth or math.nan, growth, GROWTH_TOLERANCE))
    return made


def predictor(reports: Mapping[str, Report]) -> list[Claim]:
    """The prediction takes S for its mean; the best of m sums of signs helps, so that it must lie above a1*."""
    ratios = [
        predicted / found
        for report in reports.values()
        for predicted, found in zip(report.predicted, report.thresholds, strict=True)
        if predicted and found
    ]
    if not ratios:
        return []
    text = f"a1* as predicted from p (a + b) = 0.1 is above a1*: ratios of {len(ratios)} points"
    return [claims.true("1.6 predictor", text, f"{min(ratios):.3f} to {max(ratios):.3f}", min(ratios) >= 1, "at least 1")]


def expected_growth(name: str) -> float | None:
    """n^(1/(p+1)) for weights that grow like the p-th power of the score; softmax stays below (√5-1)/2."""
    if match := re.fullmatch(r"(?:taylor|power)-(\d+)", name):
        return 1 / (int(match[1]) + 1)
    return {"softmax": 0.0, "linear": 0.5, "relu": 0.5, "elu": 0.5, "2mamba": 1 / 3, "hedgehog": 1.0}.get(name)


def robust(name: str, report: Report, attention: Attention) -> list[Claim]:
    """d' at noise 0.1; the references have two or three digits."""
    made = []
    if name in references.D_PRIMES:
        pairs = zip(report.d_primes, references.D_PRIMES[name], strict=True)
        text = f"d' of {name} at n = 10² … 10⁵, noise 0.1: largest relative distance from the reference"
        made.append(claims.at_most(f"1.7 d' {name}", text, max(abs(d / expected - 1) for d, expected in pairs), 0.03))
    if name == "linear":
        found = lost_at(attention, Setting(), 0.1) or math.nan
        made.append(claims.near_relative("1.7 lost", "tokens after which d' of linear is below 1", found, 6000, 0.05))
    if name == "softmax":
        first, last = report.d_primes[0], report.d_primes[-1]
        text = f"d' of softmax rises with n: at {NOISE_LENGTHS[-1]:g} against {NOISE_LENGTHS[0]:g} tokens, ratio"
        made.append(claims.at_least("1.7 rises", text, last / first, 1.0))
    return made


def limits(weak: Mechanism) -> list[Claim]:
    """What the claim is not: with a readout set by hand linear attention separates too."""
    low, high = hand_set(weak, Setting())
    text = f"{weak.name}, one head that reads the needle's channel alone (y = e_1)"
    return [
        claims.near("1.7 hand-set", f"{text}: largest reading on D0", low, 0.00003, 5e-6),
        claims.near("1.7 hand-set", f"{text}: largest reading on D1", high, 0.0069, 5e-5),
        claims.true("1.7 hand-set", f"{text}: a threshold between separates", f"{low:.2g} < {high:.2g}", low < high),
    ]


def hand_set(attention: Attention, setting: Setting) -> tuple[float, float]:
    """What a head with y = e_1 reads at most on D0 and on D1: every threshold between them separates."""
    readings = []
    for a in setting.needles:
        found = masses(attention, setting.n, a, setting.scale)
        readings.append(setting.unit * a * max(found.generic, found.needle))
    return readings[0], readings[1]


def magnitudes() -> list[Claim]:
    """FAVOR+ turns the needle round; keys of unit length do not carry it."""
    sizes = (16, 64, 256, 1024)
    favor = [Mechanism(f"performer, {size} features", "performer", {"num_features": size}) for size in sizes]
    success = max(score(one, Setting(a1=a1), 1000, 0).success for one in favor for a1 in (0.5, 1.2, 2.0))
    largest = max(1000 * masses(one, 1000, 1.2).needle for one in favor)
    unit = mechanism("qk-norm")
    why = f"the needle is coded in the length of its key (mass {masses(unit, 1000, 1.2).needle:.4g} = 1/n)"
    return [
        claims.at_most("1.6 FAVOR+", "FAVOR+, 16 to 1024 features, a1 = 0.5, 1.2, 2: largest success", success, 0.0),
        claims.at_most("1.6 FAVOR+", "FAVOR+: largest mass on the needle times n; inverted, as it is below 1", largest, 1.0),
        claims.not_applicable("1.6 QK norm", "softmax of queries and keys of unit length", why),
    ]
