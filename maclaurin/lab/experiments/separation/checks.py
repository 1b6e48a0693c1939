"""What is asked of one mechanism (does it separate, how large must the needle be, how much noise does it outlast?), the
settings that it is asked in, and the claims about the answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import slope
from maclaurin.lab.experiments.separation import networks as two_rows
from maclaurin.lab.experiments.separation.networks import MARGIN, Masses, Score, Setting, masses, mismatches, score
from maclaurin.lab.mechanisms import Attention, Named, mechanism

LENGTHS = (1e2, 1e3, 1e4, 1e5, 1e6)
FAR = (1e22, 1e24)  # where the growth of a1* has settled; the two-row formula does not mind
NOISE_LENGTHS = (1e2, 1e3, 1e4, 1e5)
SMALLEST_A = 0.02
PRECISION = 1e-5
STANDARD_ERRORS = 4.5  # of the largest of some hundred shares; the exact ones differ by less if the draws are right
GROWTH_TOLERANCE = 0.01
# whose weights are a power of the score, or a series: the prediction of a1* is about these
PREDICTED = ("softmax", "linear", "elu", "taylor-2", "power-2", "power-4", "power-8", "power-16")


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


@dataclass(frozen=True)
class Sweep:
    """values: of the fields that change, the first one drawn; around: fields that differ from the base all along."""

    key: str
    values: dict[str, list[Any]]
    around: dict[str, Any]
    log: bool = False

    @property
    def field(self) -> tuple[str, list[Any]]:
        return next(iter(self.values.items()))

    def scores(self, attention: Attention, base: Setting, networks: int, seed: int) -> list[Score]:
        rows = zip(*self.values.values(), strict=True)
        changed = [self.around | dict(zip(self.values, row, strict=True)) for row in rows]
        return [score(attention, replace(base, **change), networks, seed) for change in changed]


def sweeps(base: Setting) -> list[Sweep]:
    """One field at a time; with d, n changes too, so that the columns repeat as often as in the base."""
    repeats = round(base.n / (base.d - 2))
    dims = [4, 7, 12, 22, 32, 42, 52, 102]
    lengths = [times * (base.d - 2) for times in (1, 2, 4, 10, 20, 200, 2000, 20000)]
    return [
        Sweep("a1", {"a1": [0.1, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 1.2, 2.0, 3.0]}, {}),
        Sweep("a0", {"a0": [0.01, 0.1, 0.3, 0.4, 0.5, 0.55, 0.6, 0.7]}, {}),
        Sweep("c", {"c": [0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}, {}),
        Sweep("m", {"m": [1, 2, 5, 10, 15, 20, 40, 160, 320, 1000]}, {}, log=True),
        Sweep("d", {"d": dims, "n": [repeats * (d - 2) for d in dims]}, {}, log=True),
        Sweep("n", {"n": lengths}, {}, log=True),
        Sweep("n, a1=.7", {"n": lengths[1:]}, {"a1": 0.7}, log=True),
        Sweep("m, c=.5", {"m": [5, 15, 40, 100]}, {"c": 0.5, "d": 402, "n": repeats * 400}),
    ]


def gates(strong: Named, weak: Named, base: Setting, networks: int, seed: int) -> list[claims.Claim]:
    """Whether there is a separation at all, at the setting that was asked for, and where it must end."""

    def success(mechanism: Named, setting: Setting = base) -> float:
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


def draws(scores: Sequence[Score]) -> claims.Claim:
    """Measured shares against exact probabilities: the draws and the formula must be the same network."""
    shares = [(one.success, one.exact.success, one.networks) for one in scores if one.exact is not None]
    worst = max(abs(p - q) / math.sqrt(max(q * (1 - q), 1 / count) / count) for p, q, count in shares)
    text = f"drawn networks against exact probabilities, {len(scores)} points: largest distance in standard errors"
    return claims.at_most("1.4", text, worst, STANDARD_ERRORS)


def written_out(attentions: Sequence[Attention], networks: int, seed: int) -> claims.Claim:
    """The two-row formula against the n x n network, needle anywhere, with and without a query of its own."""
    settings = {  # needle: setting
        0: Setting(n=200, a1=0.5),
        37: Setting(n=100, d=12, c=0.7, a1=2.0),
        399: Setting(n=400, a1=0.45, m=15),
        99: Setting(n=100, d=12, a1=3.0, cross=True),
    }
    cases = [(attention, needle) for attention in attentions for needle in settings]
    wrong = sum(mismatches(attention, settings[needle], networks, seed, needle) for attention, needle in cases)
    count = 2 * networks * len(cases)
    return claims.at_most("1.5 full network", f"of {count} full networks, those the two-row formula gets wrong", wrong, 0)


def needle_masses(strong: Attention, weak: Attention) -> list[claims.Claim]:
    """What the ops put on the needle beside the closed forms for exp(s) and s. The query factor cancels in the second."""
    n, sizes = 1000.0, (1.2, 0.7, 0.1, 0.01)
    found = [masses(strong, n, a) for a in sizes]
    needle = [n ** (a * a + a) / (n - 1 + n ** (a * a + a)) for a in sizes]
    lines = [
        ("softmax, generic row", [one.generic for one in found], [n**a / (n - 1 + n**a) for a in sizes]),
        ("softmax, needle row", [one.needle for one in found], needle),
        ("linear, every row", [masses(weak, n, a).needle for a in sizes], [(1 + a) / (n + a) for a in sizes]),
        ("softmax, a query of its own, n = 100", [masses(strong, 100, 3).generic], [100**3 / (99 + 100**3)]),
        ("linear, a query of its own, n = 100", [masses(weak, 100, 3).generic], [4 / 103]),
    ]
    text = "mass on the needle, {}: largest relative distance from the closed form"
    worst = {row: max(abs(a / b - 1) for a, b in zip(*both, strict=True)) for row, *both in lines}
    return [claims.at_most("1.3", text.format(row), gap, 1e-6) for row, gap in worst.items()]


def predictor(reports: Mapping[str, Report]) -> list[claims.Claim]:
    """The prediction takes S for its mean; the best of m sums of signs helps, so that it must lie above a1*."""
    ratios = [
        predicted / found
        for name, report in reports.items()
        if name in PREDICTED
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


def of_report(name: str, report: Report) -> list[claims.Claim]:
    """The growth of a1* beside the theory, and d' at noise 0.1: linear attention loses the needle, softmax does not."""
    made = []
    if (expected := expected_growth(name)) is not None:
        text = f"growth of a1* with n, {name}: exponent from 10²² to 10²⁴"
        made.append(claims.near(f"1.6 growth {name}", text, report.growth or math.nan, expected, GROWTH_TOLERANCE))
    if name == "linear":
        found = lost_at(mechanism(name), Setting(), 0.1) or math.nan
        made.append(claims.near_relative("1.7 lost", "tokens after which d' of linear is below 1", found, 6000, 0.05))
    if name == "softmax":
        text = f"d' of softmax rises with n: at {NOISE_LENGTHS[-1]:g} against {NOISE_LENGTHS[0]:g} tokens, ratio"
        made.append(claims.at_least("1.7 rises", text, report.d_primes[-1] / report.d_primes[0], 1.0))
    return made


def limits(weak: Named) -> list[claims.Claim]:
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
    found = {a: masses(attention, setting.n, a, setting.scale) for a in setting.needles}
    low, high = (setting.unit * a * max(found[a].generic, found[a].needle) for a in setting.needles)
    return low, high


def magnitudes() -> list[claims.Claim]:
    """FAVOR+ turns the needle round; keys of unit length do not carry it."""
    sizes = (16, 64, 256, 1024)
    favor = [mechanism("performer", num_features=size) for size in sizes]
    success = max(score(one, Setting(a1=a1), 1000, 0).success for one in favor for a1 in (0.5, 1.2, 2.0))
    largest = max(1000 * masses(one, 1000, 1.2).needle for one in favor)
    unit = masses(mechanism("qk-norm"), 1000, 1.2).needle
    why = f"the needle is coded in the length of its key (mass {unit:.4g} = 1/n)"
    return [
        claims.at_most("1.6 FAVOR+", "FAVOR+, 16 to 1024 features, a1 = 0.5, 1.2, 2: largest success", success, 0.0),
        claims.at_most("1.6 FAVOR+", "FAVOR+: largest mass on the needle times n; inverted, as it is below 1", largest, 1.0),
        claims.not_applicable("1.6 QK norm", "softmax of queries and keys of unit length", why),
    ]
