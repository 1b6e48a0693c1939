"""Random queries: the mean square error over a Gaussian law of queries falls like L^−κ, slower the wider the law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from maclaurin.lab import claims
from maclaurin.lab.experiments.long_prompt import formulas
from maclaurin.lab.experiments.long_prompt.draws import prompts_for, slope
from maclaurin.lab.experiments.long_prompt.part import Part
from maclaurin.lab.experiments.long_prompt.sizes import SIZES, Table
from maclaurin.lab.result import Curve, Grid, Plot

LENGTHS = tuple(2**power for power in range(4, 15))
# λ: slope of the mean square error over all lengths, over the last five
REFERENCE = {
    0.05: (-0.992, -0.978),
    0.2: (-0.981, -1.009),
    0.4: (-0.884, -0.916),
    0.5: (-0.837, -0.856),
    0.75: (-0.732, -0.752),
    1.0: (-0.617, -0.567),
    2.0: (-0.484, -0.460),
    4.0: (-0.338, -0.300),
}
AT_LAST = {0.05: 1.09, 0.2: 1.66, 0.4: 4.21}  # L·MSE at 2^14


def over_queries(table: Table, spread: float) -> float:
    """The mean square error over queries a ~ N(0, λ), d = 1, by the trapezoid rule."""
    fine = torch.linspace(0, SIZES[-1], 24001, dtype=torch.float64, device="cpu")
    density = torch.exp(-(fine**2) / (2 * spread)) * math.sqrt(2 / (math.pi * spread))
    return torch.trapezoid(table.error(fine) * density, fine).item()


def part(tokens: int, source: torch.Generator) -> Part:
    tables = [Table.drawn(length, prompts_for(length, tokens), source) for length in LENGTHS]
    errors = {spread: [over_queries(table, spread) for table in tables] for spread in REFERENCE}
    every = {spread: slope(LENGTHS, values) for spread, values in errors.items()}
    last = {spread: slope(LENGTHS[-5:], values[-5:]) for spread, values in errors.items()}
    made = []
    for spread, (reference, _) in REFERENCE.items():
        # the law of large numbers is slow here: the reference's own two slopes differ by up to .05
        text = f"slope of the mean square error at λ = {spread:g}, L = 16 to 16384"
        made.append(claims.near("2.3 slope", text, every[spread], reference, 0.05))
    for spread in (0.05, 0.2):
        text = f"slope over the last five lengths at λ = {spread:g} is −κ"
        made.append(claims.near("2.3 exponent", text, last[spread], -formulas.query_exponent(spread), 0.1))
    for spread in (0.75, 1.0):
        # rare prompts carry the error here: five lengths are too few for a slope
        text = f"slope over all lengths at λ = {spread:g} is −κ"
        made.append(claims.near("2.3 exponent", text, every[spread], -formulas.query_exponent(spread), 0.1))
    ordered = all(left < right for left, right in pairwise(every.values()))
    text = "the wider the law of queries, the slower: slopes rise with λ"
    made.append(claims.true("2.3 order", text, " ".join(f"{value:.3f}" for value in every.values()), ordered))
    for spread in (0.05, 0.2):
        value = _constant(errors[spread], tokens)
        text = f"L·MSE over the last three lengths, λ = {spread:g}"
        made.append(claims.near_relative("2.3 constant", text, value, formulas.query_error(1, spread), 0.1))
    value = LENGTHS[-1] * errors[0.4][-1]
    text = "L·MSE at L = 16384, λ = 0.4, still below its limit: over 6.71"
    made.append(claims.at_most("2.3 constant", text, value / formulas.query_error(1, 0.4), 0.9))
    return Part(made, [_grid(errors, every, last)], [_plot(errors)])


def _constant(errors: Sequence[float], tokens: int) -> float:
    """L·MSE over the prompts of the last three lengths together: those of the longest alone are too few."""
    counts = [prompts_for(length, tokens) for length in LENGTHS[-3:]]
    scaled = (count * length * error for count, length, error in zip(counts, LENGTHS[-3:], errors[-3:], strict=True))
    return sum(scaled) / sum(counts)


def _grid(errors: dict[float, list[float]], every: dict[float, float], last: dict[float, float]) -> Grid:
    columns = ("λ", "slope, all", "reference", "last five", "reference", "−κ", "L·MSE at 16384", "limit", "reference")
    rows = [
        (
            spread,
            *(every[spread], REFERENCE[spread][0], last[spread], REFERENCE[spread][1], -formulas.query_exponent(spread)),
            *(LENGTHS[-1] * values[-1], formulas.query_error(1, spread) if spread < 0.5 else None, AT_LAST.get(spread)),
        )
        for spread, values in errors.items()
    ]
    return Grid("Mean square error over queries a ~ N(0, λ), d = 1", columns, rows)


def _plot(errors: dict[float, list[float]]) -> Plot:
    curves = []
    for spread in (0.05, 0.4, 1.0, 2.0, 4.0):
        values = errors[spread]
        curves.append(Curve(f"λ = {spread:g}", LENGTHS, values))
        kappa = formulas.query_exponent(spread)
        line = [values[-1] * (length / LENGTHS[-1]) ** -kappa for length in LENGTHS]
        curves.append(Curve(f"λ = {spread:g}", LENGTHS, line, dashed=True))
    caption = "Error over random queries, d = 1; dotted: L^−κ through the last point."
    return Plot("queries", caption, "prompt length L", "mean square error", curves, log_x=True, log_y=True)
