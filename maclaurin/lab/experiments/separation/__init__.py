"""Softmax separates two data sets that linear attention does not (arXiv 2310.11685): for whom, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from maclaurin.common.arguments import at_least_one
from maclaurin.lab import claims
from maclaurin.lab.experiments.separation import checks
from maclaurin.lab.experiments.separation.checks import LENGTHS, NOISE_LENGTHS, Report, Sweep, probe
from maclaurin.lab.experiments.separation.networks import Score, Setting, score
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
WRITTEN_OUT = ("softmax", "linear", "2mamba", "elu")
Pair = tuple[Named, Named]  # strong, weak
Swept = Sequence[tuple[Sweep, Sequence[Sequence[Score]]]]  # the scores of both


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
    swept = [(one, [one.scores(attention, base, networks, seed) for attention in pair]) for one in checks.sweeps(base)]
    exact = [point for _, both in swept for scores in both for point in scores if point.exact is not None]
    made = [
        *checks.gates(*pair, base, networks, seed),
        *checks.needle_masses(*pair),
        *([checks.draws(exact)] if exact else ()),
        checks.written_out([mechanism(name) for name in WRITTEN_OUT], 60 if quick else 300, seed),
        *_of_mechanisms(reports, base),
        *checks.magnitudes(),
        *checks.limits(pair[1]),
    ]
    scaled = {of: score(pair[0], Setting(scale=of[0], a1=of[1]), networks, seed) for of in SCALES}
    rows = [(*of, one.success, one.exact_success) for of, one in scaled.items()]
    grids = [
        *_mechanism_grids(reports),
        _sweep_grid(swept, pair),
        Grid("Scores times g", ("g", "a1", f"success, {pair[0].name}", "exact"), rows),
    ]
    settings = asdict(base) | {"networks": networks, "noise": noise, "strong": strong, "weak": weak, "seed": seed}
    plots = [*_sweep_plots(swept, pair), *_length_plots(reports)]
    title = "Two data sets that softmax tells apart and linear attention does not"
    return Result("separation", title, settings, made, grids, plots, NOTES)


def _of_mechanisms(reports: Mapping[str, Report], base: Setting) -> list[claims.Claim]:
    """What is expected of the growth and of d' holds for the base."""
    made: list[claims.Claim] = []
    for name, report in reports.items():
        if not report.thresholds:
            made.append(claims.not_applicable("1.6", f"growth of a1* with n, {name}", "; ".join(report.notes)))
        elif replace(base, n=1000, a1=1.2) == Setting():
            made += checks.of_report(name, report)
    return [*made, *checks.predictor(reports)]


def _mechanism_grids(reports: Mapping[str, Report]) -> list[Grid]:
    shares = ("success", "95 % from", "to", "exact", "on D1", "on D0")
    rows: list[list[object]] = []
    grown: list[list[object]] = []
    for name, report in reports.items():
        found, masses = report.score, report.needle
        measured = (*found.interval, found.exact_success, found.measured.true_positive, found.measured.false_positive)
        of_needle = (None, None) if masses is None else (masses.needle * found.setting.n, masses.generic * found.setting.n)
        rows.append([name, found.success, *measured, *of_needle, report.verdict, "; ".join(report.notes)])
        if report.thresholds:
            grown.append([name, *report.thresholds, report.growth_seen, report.growth, checks.expected_growth(name)])
    noisy = [[name, *report.d_primes, report.lost_at] for name, report in reports.items() if report.d_primes]
    title = "Random networks that fire on D1 and not on D0; mass on the needle of D1, uniform is 1"
    lengths, noise_lengths = ([f"n = {n:.0e}" for n in each] for each in (LENGTHS, NOISE_LENGTHS))
    columns = ("mechanism", *lengths, "exponent, last decade", "settled", "theory")
    lost = ("mechanism", *noise_lengths, "d' = 1 at n")
    return [
        Grid(title, ("mechanism", *shares, "needle·n", "other rows·n", "verdict", ""), rows),
        Grid("a1*: the smallest needle that half of all networks find", columns, grown),
        Grid("d': how many standard deviations of noisy values lie between D0 and D1", lost, noisy),
    ]


def _sweep_grid(swept: Swept, pair: Pair) -> Grid:
    columns = [column for attention in pair for column in (attention.name, "95 % from", "to", "exact")]
    rows = []
    for one, both in swept:
        for value, *points in zip(one.field[1], *both, strict=True):
            shares = [share for point in points for share in (point.success, *point.interval, point.exact_success)]
            rows.append([one.key, float(value), *shares, points[0].limit.success, "tie" if points[0].tied else ""])
    return Grid("Success, one field at a time", ["sweep", "value", *columns, "ideal (1.4)", ""], rows)


def _sweep_plots(swept: Swept, pair: Pair) -> list[Plot]:
    plots = []
    for one, both in swept:
        field, values = one.field
        x = [float(value) for value in values]
        curves = []
        for attention, scores in zip(pair, both, strict=True):
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
