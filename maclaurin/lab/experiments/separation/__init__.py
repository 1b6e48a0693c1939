"""Softmax separates two data sets that linear attention does not (arXiv 2310.11685): for whom, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from maclaurin.common.arguments import at_least_one
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.separation import checks
from maclaurin.lab.experiments.separation.checks import Sweep
from maclaurin.lab.experiments.separation.networks import Score, Setting, score, sweep
from maclaurin.lab.experiments.separation.probe import LENGTHS, NOISE_LENGTHS, Report, probe
from maclaurin.lab.mechanisms import Named, mechanism
from maclaurin.lab.result import Curve, Grid, Plot, Result

__all__ = ["Report", "Setting", "probe", "separation"]

POWERS = ("power-4", "power-8", "power-16")
DEFAULT = ("softmax", "linear", "elu", "taylor-2", "2mamba", *POWERS, "hedgehog", "performer", "qk-norm")
SCALES = ((0.5, 0.7), (0.5, 1.2), (0.25, 0.7), (0.25, 1.2), (0.125, 1.2), (0.125, 2.0))  # a factor on the scores, and a1
NOTES = (
    "It is about this class of networks: random signs and a fixed threshold. A readout set by hand separates the data under "
    "linear attention too; what linear attention lacks is room for noise, which d' measures.",
    "The needle is coded in the length of its key. Mechanisms that normalise keys are not asked anything here.",
    "Mixers divide scores by √d; here keys have one channel, so the factor is 1. At d = 64 it is 1/8, and the effect at "
    "a1 = 1.2 is gone: see the table of scales.",
    "The data set is rebuilt from the abstract and general knowledge of arXiv 2310.11685. With --cross, the size of the one "
    "larger score, (1 + a1) log n, is ours too.",
)
Swept = Mapping[str, tuple[Sequence[Score], Sequence[Score]]]  # sweep -> strong, weak


def separation(
    *,
    quick: bool = False,
    seed: int = 0,
    mechanisms: tuple[str, ...] = DEFAULT,
    strong: str = "softmax",
    weak: str = "linear",
    n: int = 1000,
    d: int = 52,
    m: int = 40,
    a0: float = 0.01,
    a1: float = 1.2,
    c: float = 0.8,
    scale: float = 1.0,
    cross: bool = False,
    networks: int = 1000,
    noise: float = 0.1,
) -> Result:
    """Two data sets that softmax tells apart and linear attention does not (after arXiv 2310.11685).

    mechanisms: which ones are asked, by name: any mixer that is a function of Q, K and V, taylor-P, power-P, elu, qk-norm
    strong, weak: the two that are compared, softmax and linear unless you want to see them fail
    n, d, m: tokens, channels, heads; n must be a multiple of d - 2
    a0, a1: size of the needle in D0 and D1. c: of the constant channel; the threshold is (c + 0.1)√(log n)
    scale: a factor on the scores. cross: a query of its own, in place of self-attention
    networks: drawn for every point. noise: standard deviation of what d' adds to the values
    quick: fewer networks are written out in full
    """
    at_least_one("networks", networks)
    if not noise > 0:
        raise ValueError(f"noise must be above 0, got {noise}")
    base = Setting(n, d, m, a0, a1, c, scale, cross)
    pair = (mechanism(strong), mechanism(weak))
    reports = {name: probe(mechanism(name), base, networks=networks, seed=seed, noise=noise) for name in mechanisms}
    found, full = _swept(pair, base, networks, seed), 60 if quick else 300
    exact = [one for both in found.values() for scores in both for one in scores if one.exact is not None]
    return Result(
        "separation",
        "Two data sets that softmax tells apart and linear attention does not",
        asdict(base) | {"networks": networks, "noise": noise, "strong": strong, "weak": weak, "seed": seed},
        [
            *checks.gates(*pair, base, networks, seed),
            *checks.needle_masses(*pair),
            *([checks.draws(exact)] if exact else ()),
            checks.written_out([mechanism(name) for name in ("softmax", "linear", "2mamba", "elu")], full, seed),
            *_of_mechanisms(reports, base),
            *checks.magnitudes(),
            *checks.limits(pair[1]),
        ],
        _grids(pair, base, reports, found, networks, seed),
        [*_sweep_plots(base, found, pair), *_length_plots(reports)],
        NOTES,
    )


def _swept(pair: tuple[Named, Named], base: Setting, networks: int, seed: int) -> Swept:
    def scores(mechanism: Named, one: Sweep) -> list[Score]:
        return sweep(mechanism, replace(base, **one.around), one.values, networks, seed)

    return {one.key: (scores(pair[0], one), scores(pair[1], one)) for one in checks.sweeps(base)}


def _of_mechanisms(reports: Mapping[str, Report], base: Setting) -> list[Claim]:
    """What is expected of the growth and of d' holds for the base."""
    made: list[Claim] = []
    for name, report in reports.items():
        if not report.thresholds:
            made.append(claims.not_applicable("1.6", f"growth of a1* with n, {name}", "; ".join(report.notes)))
        elif replace(base, n=1000, a1=1.2) == Setting():
            made += [*checks.growth(name, report), *checks.robust(name, report, mechanism(name))]
    return [*made, *checks.predictor(reports)]


def _grids(
    pair: tuple[Named, Named], base: Setting, reports: Mapping[str, Report], found: Swept, networks: int, seed: int
) -> list[Grid]:
    scaled = {of: score(pair[0], Setting(scale=of[0], a1=of[1]), networks, seed) for of in SCALES}
    rows = [(*of, one.success, one.exact_success) for of, one in scaled.items()]
    return [
        _mechanism_grid(reports),
        _growth_grid(reports),
        _noise_grid(reports),
        _sweep_grid(checks.sweeps(base), found, pair),
        Grid("Scores times g", ("g", "a1", f"success, {pair[0].name}", "exact"), rows),
    ]


def _mechanism_grid(reports: Mapping[str, Report]) -> Grid:
    shares = ("success", "95 % from", "to", "exact", "on D1", "on D0")
    rows = []
    for name, report in reports.items():
        found, length = report.score, report.score.setting.n
        measured = (*found.interval, found.exact_success, found.measured.true_positive, found.measured.false_positive)
        needle, generic = None, None
        if report.needle is not None:
            needle, generic = report.needle.needle * length, report.needle.generic * length
        rows.append([name, found.success, *measured, needle, generic, report.verdict, "; ".join(report.notes)])
    title = "Random networks that fire on D1 and not on D0; mass on the needle of D1, uniform is 1"
    return Grid(title, ("mechanism", *shares, "needle·n", "other rows·n", "verdict", ""), rows)


def _growth_grid(reports: Mapping[str, Report]) -> Grid:
    columns = ("mechanism", *(f"n = {n:.0e}" for n in LENGTHS), "exponent, last decade", "settled", "theory")
    rows = [
        [name, *report.thresholds, report.growth_seen, report.growth, checks.expected_growth(name)]
        for name, report in reports.items()
        if report.thresholds
    ]
    return Grid("a1*: the smallest needle that half of all networks find", columns, rows)


def _noise_grid(reports: Mapping[str, Report]) -> Grid:
    columns = ("mechanism", *(f"n = {n:.0e}" for n in NOISE_LENGTHS), "d' = 1 at n")
    rows = [[name, *report.d_primes, report.lost_at] for name, report in reports.items() if report.d_primes]
    return Grid("d': how many standard deviations of noisy values lie between D0 and D1", columns, rows)


def _sweep_grid(sweeps: Sequence[Sweep], found: Swept, pair: tuple[Named, Named]) -> Grid:
    columns = ["sweep", "value"]
    for attention in pair:
        columns += [attention.name, "95 % from", "to", "exact"]
    rows = []
    for one in sweeps:
        for value, *points in zip(next(iter(one.values.values())), *found[one.key], strict=True):
            shares = [share for point in points for share in (point.success, *point.interval, point.exact_success)]
            rows.append([one.key, float(value), *shares, points[0].limit.success, "tie" if points[0].tied else ""])
    return Grid("Success, one field at a time", [*columns, "ideal (1.4)", ""], rows)


def _sweep_plots(base: Setting, found: Swept, pair: tuple[Named, Named]) -> list[Plot]:
    plots = []
    for one in checks.sweeps(base):
        field = next(iter(one.values))
        x = [float(value) for value in one.values[field]]
        curves = []
        for attention, scores in zip(pair, found[one.key], strict=True):
            low, high = zip(*(point.interval for point in scores), strict=True)
            curves.append(Curve(attention.name, x, [point.success for point in scores], low, high))
            exact = [point.exact.success for point in scores if point.exact is not None]
            if len(exact) == len(x):
                curves.append(Curve(attention.name, x, exact, dashed=True))
        kept = ", ".join(f"{name} = {value:g}" for name, value in one.around.items())
        caption = f"Networks that tell D0 from D1, by {field}{f' ({kept})' if kept else ''}; 95 % intervals. Dotted: exact."
        key = one.key.replace(", ", "-").replace("=.", "0")
        plots.append(Plot(key, caption, field, "share of networks", curves, log_x=one.log))
    return plots


def _length_plots(reports: Mapping[str, Report]) -> list[Plot]:
    found, noisy = [], []
    for name, report in reports.items():
        points = {n: a for n, a in zip(LENGTHS, report.thresholds, strict=False) if a is not None}
        if len(points) > 1:
            found.append(Curve.of(name, points))
        if report.d_primes and min(report.d_primes) > 0:
            noisy.append(Curve(name, NOISE_LENGTHS, report.d_primes))
    return [
        Plot("growth", "The smallest needle a1* that half of all networks find.", "n", "a1*", found, log_x=True, log_y=True),
        Plot("noise", "Distance d' of D0 and D1 in noisy values.", "n", "d'", noisy, log_x=True, log_y=True),
    ]
