"""The experiment: settings in, claims, tables and curves out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from maclaurin.common.arguments import at_least_one
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.separation import checks, references
from maclaurin.lab.experiments.separation.formulas import Setting
from maclaurin.lab.experiments.separation.networks import Score, sweep
from maclaurin.lab.experiments.separation.probe import LENGTHS, NOISE_LENGTHS, Report, probe
from maclaurin.lab.experiments.separation.references import Sweep
from maclaurin.lab.mechanisms import Mechanism, mechanism
from maclaurin.lab.result import Curve, Grid, Plot, Result

DEFAULT = (
    "softmax",
    "linear",
    "elu",
    "taylor-2",
    "2mamba",
    "power-4",
    "power-8",
    "power-16",
    "hedgehog",
    "performer",
    "qk-norm",
)
NOTES = (
    "It is about this class of networks: random signs and a fixed threshold. A readout set by hand separates the data under "
    "linear attention too; what linear attention lacks is room for noise, which d' measures.",
    "The needle is coded in the length of its key. Mechanisms that normalise keys are not asked anything here.",
    "Mixers divide scores by √d; here keys have one channel, so the factor is 1. At d = 64 it is 1/8, and the effect at "
    "a1 = 1.2 is gone: see the table of scales.",
    "The data set is rebuilt from the abstract and general knowledge of arXiv 2310.11685; the references are our own, not "
    "its figures. With --cross, the size of the one larger score, (1 + a1) log n, is ours too.",
)


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
    strong, weak: the two that are held against the references, softmax and linear unless you want to see them fail
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
    sweeps = references.sweeps(base)
    found = {
        one.key: (
            sweep(pair[0], replace(base, **one.around), one.values, networks, seed),
            sweep(pair[1], replace(base, **one.around), one.values, networks, seed),
        )
        for one in sweeps
    }
    scale_claims, scale_rows = checks.scaled(pair[0], networks, seed)
    made = [
        *checks.gates(*pair, base, networks, seed),
        *_against_references(pair, base, sweeps, found, scale_claims),
        *_of_draws(found),
        checks.written_out([mechanism(name) for name in ("softmax", "linear", "2mamba", "elu")], 60 if quick else 300, seed),
        *_of_mechanisms(reports, base),
        *checks.magnitudes(),
        *checks.limits(pair[1]),
    ]
    return Result(
        "separation",
        "Two data sets that softmax tells apart and linear attention does not",
        asdict(base) | {"networks": networks, "noise": noise, "strong": strong, "weak": weak, "seed": seed},
        made,
        [
            _mechanism_grid(reports),
            _growth_grid(reports),
            _noise_grid(reports),
            _sweep_grid(sweeps, found, pair),
            Grid("Scores times g", ("g", "a1", f"success, {strong}", "exact", "reference"), scale_rows),
        ],
        [*_sweep_plots(sweeps, found, pair), *_length_plots(reports)],
        NOTES,
    )


def _against_references(
    pair: tuple[Mechanism, Mechanism],
    base: Setting,
    sweeps: Sequence[Sweep],
    found: checks.Swept,
    scale_claims: Sequence[Claim],
) -> list[Claim]:
    made = [*checks.needle_masses(*pair), *scale_claims]
    if base != Setting():
        why = "the references were measured at n 1000, d 52, m 40, a0 0.01, a1 1.2, c 0.8"
        return [*made, claims.not_applicable("1.5", "success over the sweeps beside the references", why)]
    return [*made, *checks.swept(sweeps, found, (pair[0].name, pair[1].name))]


def _of_draws(found: checks.Swept) -> list[Claim]:
    scores = [one for both in found.values() for scores in both for one in scores if one.exact is not None]
    return [checks.draws(scores)] if scores else []


def _of_mechanisms(reports: Mapping[str, Report], base: Setting) -> list[Claim]:
    """References of a1* and d' hold for the base alone; the growth holds for any."""
    made: list[Claim] = []
    for name, report in reports.items():
        if not report.thresholds:
            made.append(claims.not_applicable("1.6", f"growth of a1* with n, {name}", "; ".join(report.notes)))
            continue
        if replace(base, n=1000, a1=1.2) == Setting():
            made += [*checks.thresholds(name, report), *checks.robust(name, report, mechanism(name))]
    return [*made, *checks.predictor({name: reports[name] for name in reports if name in references.THRESHOLDS})]


def _mechanism_grid(reports: Mapping[str, Report]) -> Grid:
    columns = (
        "mechanism",
        "success",
        "95 % from",
        "to",
        "exact",
        "on D1",
        "on D0",
        "needle·n",
        "other rows·n",
        "verdict",
        "",
    )
    rows = []
    for name, report in reports.items():
        found, length = report.score, report.score.setting.n
        needle = None if report.needle is None else report.needle.needle * length
        generic = None if report.needle is None else report.needle.generic * length
        exact = None if found.exact is None else found.exact.success
        shares = (found.success, *found.interval, exact, found.measured.true_positive, found.measured.false_positive)
        rows.append([name, *shares, needle, generic, report.verdict, "; ".join(report.notes)])
    return Grid("Random networks that fire on D1 and not on D0; mass on the needle of D1, uniform is 1", columns, rows)


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


def _sweep_grid(sweeps: Sequence[Sweep], found: checks.Swept, pair: tuple[Mechanism, Mechanism]) -> Grid:
    columns = ["sweep", "value"]
    for attention, reference in zip(pair, ("softmax", "linear"), strict=True):
        columns += [attention.name, "95 % from", "to", "exact", f"reference, {reference}"]
    columns += ["ideal (1.4)", ""]
    rows = []
    for one in sweeps:
        field = next(iter(one.values))
        for index, value in enumerate(one.values[field]):
            row: list[str | float | None] = [one.key, float(value)]
            for scores, shares in zip(found[one.key], (one.softmax, one.linear), strict=True):
                point = scores[index]
                exact = None if point.exact is None else point.exact.success
                row += [point.success, *point.interval, exact, float(shares[index])]
            first = found[one.key][0][index]
            rows.append([*row, first.limit.success, "tie" if first.tied else ""])
    return Grid("Success, one field at a time", columns, rows)


def _sweep_plots(sweeps: Sequence[Sweep], found: checks.Swept, pair: tuple[Mechanism, Mechanism]) -> list[Plot]:
    plots = []
    for one in sweeps:
        field = next(iter(one.values))
        x = [float(value) for value in one.values[field]]
        curves = []
        for attention, scores in zip(pair, found[one.key], strict=True):
            low, high = zip(*(point.interval for point in scores), strict=True)
            curves.append(Curve(attention.name, x, [point.success for point in scores], low, high))
            if all(point.exact is not None for point in scores):
                curves.append(Curve(attention.name, x, [_exact(point) for point in scores], dashed=True))
        kept = ", ".join(f"{name} = {value:g}" for name, value in one.around.items())
        caption = f"Networks that tell D0 from D1, by {field}{f' ({kept})' if kept else ''}; 95 % intervals. Dotted: exact."
        key = one.key.replace(", ", "-").replace("=.", "0")
        plots.append(Plot(key, caption, field, "share of networks", curves, log_x=one.log))
    return plots


def _exact(point: Score) -> float:
    return math.nan if point.exact is None else point.exact.success


def _length_plots(reports: Mapping[str, Report]) -> list[Plot]:
    found, noisy = [], []
    for name, report in reports.items():
        points = [(n, a) for n, a in zip(LENGTHS, report.thresholds, strict=False) if a is not None]
        if len(points) > 1:
            found.append(Curve(name, [n for n, _ in points], [a for _, a in points]))
        if report.d_primes and min(report.d_primes) > 0:
            noisy.append(Curve(name, NOISE_LENGTHS, report.d_primes))
    return [
        Plot("growth", "The smallest needle a1* that half of all networks find.", "n", "a1*", found, log_x=True, log_y=True),
        Plot("noise", "Distance d' of D0 and D1 in noisy values.", "n", "d'", noisy, log_x=True, log_y=True),
    ]
