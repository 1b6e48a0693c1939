"""What softmax over L Gaussian tokens returns for a query of each size: one table of it serves every law of queries.

Only the channel of the tokens along the query a decides their weights p. Along it the error is Σ p_i x_i − |a|; across it,
given the weights, every channel is Gaussian with variance Σ p².
"""

# N prompts, L tokens, S sizes of the query

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import chunks, draw, prompts_for, slope, vector
from maclaurin.lab.experiments.long_prompt import limits
from maclaurin.lab.result import Curve, Grid, Part, Plot

LENGTHS = tuple(2**power for power in range(4, 15))
SPREADS, SHOWN = (0.05, 0.2, 0.4, 0.5, 0.75, 1.0, 2.0, 4.0), (0.05, 0.4, 1.0, 2.0, 4.0)  # λ
# between them the logarithms are straight lines to 1 %
SIZES = (*(0.2 * step for step in range(1, 31)), *(6.0 + 0.5 * step for step in range(1, 13)))
TOKENS_AT_ONCE = 2**16  # each token has a weight for every size


@dataclass(frozen=True)
class Table:
    """At queries of SIZES: the means over prompts of (Σ p_i x_i − |a|)², of Σ p², and of 1 − Σ p_i x_i/|a|."""

    length: int
    error_S: Tensor
    concentration_S: Tensor
    shrinkage_S: Tensor

    @classmethod
    def drawn(cls, length: int, prompts: int, source: torch.Generator) -> Table:
        size_S = vector(SIZES)
        error_S, concentration_S, shrinkage_S = torch.zeros(3, len(SIZES), dtype=torch.float64, device="cpu")
        for count in chunks(prompts, length, TOKENS_AT_ONCE):
            x_NL = draw("gaussian", (count, length), source)
            below_NL = x_NL - x_NL.amax(-1, keepdim=True)  # |a| ≥ 0: no weight above 1
            weight_NSL = torch.exp(size_S[:, None] * below_NL[:, None])
            both_NS2 = weight_NSL @ torch.stack([x_NL, torch.ones_like(x_NL)], -1)
            total_NS = both_NS2[..., 1]
            missed_NS = both_NS2[..., 0] / total_NS - size_S
            error_S += missed_NS.square().sum(0)
            shrinkage_S -= missed_NS.sum(0) / size_S
            concentration_S += (torch.linalg.vector_norm(weight_NSL, dim=-1) / total_NS).square().sum(0)
        return cls(length, error_S / prompts, concentration_S / prompts, shrinkage_S / prompts)

    def error(self, size: Tensor) -> Tensor:
        return self._between(self.error_S.log(), -math.log(self.length), size).exp()

    def concentration(self, size: Tensor) -> Tensor:
        return self._between(self.concentration_S.log(), -math.log(self.length), size).exp()

    def shrinkage(self, size: Tensor) -> Tensor:
        """Not by its logarithm: few prompts may give a negative one."""
        return self._between(self.shrinkage_S, 1 / self.length, size)

    @staticmethod
    def _between(value_S: Tensor, first: float, size: Tensor) -> Tensor:
        """By straight lines. first: at size 0, where all weights are 1/L, and so are all three means."""
        known, value = vector((0.0, *SIZES)), torch.cat([vector([first]), value_S])
        right = torch.searchsorted(known, size).clamp(1, len(known) - 1)
        share = (size - known[right - 1]) / (known[right] - known[right - 1])
        return value[right - 1] + share * (value[right] - value[right - 1])


def over_queries(table: Table, spread: float) -> float:
    """The mean square error over queries a ~ N(0, λ), d = 1, by the trapezoid rule."""
    fine = torch.linspace(0, SIZES[-1], 24001, dtype=torch.float64, device="cpu")
    density = torch.exp(-(fine**2) / (2 * spread)) * math.sqrt(2 / (math.pi * spread))
    return torch.trapezoid(table.error(fine) * density, fine).item()


def part(tokens: int, source: torch.Generator) -> Part:
    tables = [Table.drawn(length, prompts_for(length, tokens), source) for length in LENGTHS]
    errors = {spread: [over_queries(table, spread) for table in tables] for spread in SPREADS}
    every = {spread: slope(LENGTHS, values) for spread, values in errors.items()}
    last = {spread: slope(LENGTHS[-5:], values[-5:]) for spread, values in errors.items()}
    made = []
    # from 0.75 on rare prompts carry the error: five lengths are too few for a slope
    for over, slopes, spreads in (("the last five", last, (0.05, 0.2)), ("all", every, (0.75, 1.0))):
        for spread in spreads:
            text = f"slope over {over} lengths at λ = {spread:g} is −κ"
            made.append(claims.near("2.3 exponent", text, slopes[spread], -limits.query_exponent(spread), 0.1))
    ordered = all(left < right for left, right in pairwise(every.values()))
    text = "the wider the law of queries, the slower: slopes rise with λ"
    made.append(claims.true("2.3 order", text, " ".join(f"{value:.3f}" for value in every.values()), ordered))
    counts = [prompts_for(length, tokens) for length in LENGTHS[-3:]]
    for spread in (0.05, 0.2):  # over the prompts of three lengths together: those of the longest alone are too few
        text = f"L·MSE over the last three lengths, λ = {spread:g}"
        last_three = zip(counts, LENGTHS[-3:], errors[spread][-3:], strict=True)
        value = sum(count * length * error for count, length, error in last_three) / sum(counts)
        made.append(claims.near_relative("2.3 constant", text, value, limits.query_error(1, spread), 0.1))
    share = LENGTHS[-1] * errors[0.4][-1] / limits.query_error(1, 0.4)
    made.append(claims.at_most("2.3 constant", "L·MSE at L = 16384, λ = 0.4, still below its limit: over 6.71", share, 0.9))
    rows, curves = [], []
    for spread, values in errors.items():
        limit, kappa = limits.query_error(1, spread) if spread < 0.5 else None, limits.query_exponent(spread)
        rows.append((spread, every[spread], last[spread], -kappa, LENGTHS[-1] * values[-1], limit))
        if spread in SHOWN:
            line = [values[-1] * (length / LENGTHS[-1]) ** -kappa for length in LENGTHS]
            curves += [Curve(f"λ = {spread:g}", LENGTHS, values), Curve(f"λ = {spread:g}", LENGTHS, line, dashed=True)]
    columns = ("λ", "slope, all", "last five", "−κ", "L·MSE at 16384", "limit")
    caption = "Error over random queries, d = 1; dotted: L^−κ through the last point."
    plot = Plot("queries", caption, "prompt length L", "mean square error", curves, log_x=True, log_y=True)
    return Part(made, [Grid("Mean square error over queries a ~ N(0, λ), d = 1", columns, rows)], [plot])
