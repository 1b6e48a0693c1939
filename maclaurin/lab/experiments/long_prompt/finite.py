"""Softmax over L Gaussian tokens against its limit and linear attention, for one query: errors, and lengths by accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import Mean, chunks, draw, furthest, prompts_for, slope, vector
from maclaurin.lab.experiments.long_prompt import limits
from maclaurin.lab.result import Curve, Grid, Part, Plot

# N prompts, L tokens, D channels, S sizes of the query

DIMS = 4
LENGTHS = (16, 64, 256, 1024, 4096, 16384, 65536)
VARIANCES = (0.0625, 0.25, 1.0, 2.0, 4.0, 6.0, 9.0)
LONG = 200 * 65536  # tokens drawn at each of the long lengths: 20000 prompts down to 200
WORST = 4.0  # standard errors
ALLOWED = (0.9, 1.1)

SHOWN = (16, 1024, 65536)
# (d, s², eps) at whose L_eps softmax is compared with linear attention
CASES = ((16, 0.25, 0.2), (16, 1.0, 0.2), (16, 2.0, 0.2), (16, 1.0, 0.1), (64, 0.25, 0.2), (64, 1.0, 0.2), (128, 1.0, 0.2))


@dataclass(frozen=True)
class Finite:
    """At one length and one s², over prompts: mean squares of errors, the bias along a over |a|, tokens averaged over."""

    softmax: Mean
    linear: Mean
    difference: Mean  # softmax − linear attention, same prompt
    gradient: Mean
    bias: Mean
    concentration: Mean  # Σ p²
    effective: Mean  # 1/Σ p²

    @property
    def rmse(self) -> float:
        return math.sqrt(self.softmax.value)


Measured = dict[tuple[float, int], Finite]


def measure(
    length: int, prompts: int, variances: Sequence[float], source: torch.Generator, law: str = "gaussian"
) -> list[Finite]:
    """Prompts of D = 4 independent channels, queries a = s(1, 1, 1, 1)/2; one Finite for each s²."""
    direction_D = vector([DIMS**-0.5] * DIMS)
    tilt_SD = vector(variances).sqrt()[:, None] * direction_D
    row, column = torch.triu_indices(DIMS, DIMS, device="cpu")
    twice = torch.where(row == column, 1.0, 2.0).to(torch.float64)  # an entry off the diagonal stands for two
    eye = (row == column).to(torch.float64)
    samples: list[tuple[Tensor, ...]] = []
    for count in chunks(prompts, length):
        x_NLD = draw(law, (count, length, DIMS), source)
        second_NLF = x_NLD[..., row] * x_NLD[..., column]
        p_NSL = torch.softmax(tilt_SD @ x_NLD.mT, dim=-1)
        mean_NSD = p_NSL @ x_NLD
        covariance_NSF = p_NSL @ second_NLF - mean_NSD[..., row] * mean_NSD[..., column]
        gram_NDD = x_NLD.mT @ x_NLD / length
        linear_NSD = tilt_SD @ gram_NDD
        concentration_NS = p_NSL.square().sum(-1)
        errors = (
            (mean_NSD - tilt_SD).square().sum(-1),
            (linear_NSD - tilt_SD).square().sum(-1),
            (mean_NSD - linear_NSD).square().sum(-1),
            (twice * (covariance_NSF - eye).square()).sum(-1),
            (mean_NSD - tilt_SD) @ direction_D,
            concentration_NS,
            1 / concentration_NS,
        )
        samples.append(errors)
    columns = [torch.cat(kept) for kept in zip(*samples, strict=True)]
    return [Finite(*(Mean.of(column_NS[:, index]) for column_NS in columns)) for index in range(len(variances))]


def run(tokens: int, source: torch.Generator, law: str = "gaussian") -> Measured:
    """All lengths and all s²; `tokens` are drawn at each of the long lengths."""
    measured: Measured = {}
    for length in LENGTHS:
        found = measure(length, prompts_for(length, tokens), VARIANCES, source, law)
        measured |= {(variance, length): one for variance, one in zip(VARIANCES, found, strict=True)}
    return measured


def delta_error(variance: float) -> float:
    """(2a) here."""
    return limits.softmax_error(variance, float(DIMS), variance)


def ratio(found: Finite, variance: float, length: int) -> float:
    """L·MSE over its prediction (2a)."""
    return length * found.softmax.value / delta_error(variance)


def edge(source: torch.Generator, law: str = "gaussian") -> claims.Claim:
    """At s² = .25 ln L itself, which the grid of s² misses."""
    off = []
    for length in LENGTHS[:2]:
        variance = 0.25 * math.log(length)
        (found,) = measure(length, prompts_for(length, LONG), (variance,), source, law)
        off.append(ratio(found, variance, length) - 1)
    text = "(2a) at s² = .25 ln L, L = 16, 64: L·MSE over it − 1, furthest"
    return claims.near("2.2 edge", text, furthest(off, 0.0), -0.16, 0.02, claims.CORRECTED)


def part(measured: Measured, source: torch.Generator, law: str = "gaussian") -> Part:
    made = [*_gates(measured), edge(source, law), *_further(measured)]
    curves = []
    for s2 in (0.25, 1.0, 2.0, 4.0, 9.0):
        curves.append(Curve(f"s² = {s2:g}", LENGTHS, rmses(measured, s2)))
        predicted = {L: math.sqrt(delta_error(s2) / L) for L in LENGTHS if delta_error(s2) < 16 * L}
        curves.append(Curve.of(f"s² = {s2:g}", predicted, dashed=True))
    caption = "Error of softmax over L Gaussian tokens against its affine limit, d = 4; dotted: the delta method (2a)."
    plot = Plot("error", caption, "prompt length L", "root mean square error", curves, log_x=True, log_y=True)
    return Part(made, _grids(measured), [plot])


def rmses(measured: Measured, variance: float, lengths: Sequence[int] = LENGTHS) -> list[float]:
    return [measured[variance, length].rmse for length in lengths]


def _gates(measured: Measured) -> list[claims.Claim]:
    made = []
    for variance in (0.0625, 0.25):
        text = f"error falls like 1/√L at s² = {variance:g}: slope of the rmse"
        made.append(claims.between("2.2 slope", text, slope(LENGTHS, rmses(measured, variance)), -0.53, -0.47))
    for variance in (0.0625, 0.25, 1.0):
        worst = furthest([ratio(measured[variance, L], variance, L) for L in LENGTHS if L >= 1024])
        text = f"L·MSE over (2a) at s² = {variance:g}, L ≥ 1024, furthest from 1"
        made.append(claims.between("2a", text, worst, *ALLOWED))
    value = slope(LENGTHS, rmses(measured, 9.0))
    made.append(claims.at_least("2.2 frozen", "no root-L rate at s² = 9: slope of the rmse", value, -0.3))
    for limit, allowed in ((0.25, 0.12), (0.361, 0.35)):
        cells = [(s2, L) for s2, L in measured if L in SHOWN and s2 <= limit * math.log(L)]
        shares = [(ratio(measured[s2, L], s2, L), measured[s2, L].softmax) for s2, L in cells]
        worst = max(abs(share - 1) - 3 * share * found.error / found.value for share, found in shares)
        where = f"(2a) where s² ≤ {limit:.2f} ln L, L = 16, 1024, 65536"
        text = f"{where}: |L·MSE over it − 1| less three standard errors, largest"
        made.append(claims.at_most("2.2 regime", text, worst, allowed))
    highest = max((one.softmax.value - delta_error(s2) / L) / one.softmax.error for (s2, L), one in measured.items())
    text = "(2a) never under-estimates: MSE above it, in standard errors, largest"
    return [*made, claims.at_most("2.2 conservative", text, highest, WORST)]


def _further(measured: Measured) -> list[claims.Claim]:
    exact = {s2: limits.linear_error(s2, float(DIMS), s2) for s2 in VARIANCES}
    linear = [(one.linear.value - exact[s2] / L) / one.linear.error for (s2, L), one in measured.items()]
    text = "linear attention has L·MSE (2d) at every L: furthest, in standard errors"
    made = [claims.at_most("2d", text, abs(furthest(linear, 0.0)), WORST)]
    for key, text, of in (
        ("2b tokens", "L·Σp² over e^{s²}", lambda found, s2: found.concentration.value / math.exp(s2)),
        ("2c", "gradient: L·MSE over (2c)", lambda found, s2: found.gradient.value / _gradient(s2)),
        ("2e", "softmax − linear: L·MSE over (2e)", lambda found, s2: found.difference.value / difference(s2)),
    ):
        worst = furthest([L * of(measured[s2, L], s2) for s2 in (0.0625, 0.25) for L in LENGTHS if L >= 1024])
        made.append(claims.between(key, f"{text}, s² ≤ 0.25, L ≥ 1024, furthest from 1", worst, *ALLOWED))
    above = max(1 + measured[9.0, L].bias.value / 3 - limits.expected_maximum(L) / 3 for L in (16, 64))
    text = "frozen (s² > 2 ln L): gain minus its bound E max/s, s² = 9, L ≤ 64"
    return [*made, claims.at_most("2.2 top key", text, above, 0.0)]


def _gradient(variance: float) -> float:
    dims = float(DIMS)
    return limits.gradient_error(variance, dims, variance, dims, variance, dims, variance)


def _grids(measured: Measured) -> list[Grid]:
    columns = ("s²", "L", "s²/ln L", "regime", "rmse", "L·MSE/(2a)", "bias", "(2b)", "1/Σp²", "L/e^{s²}", "‖C−Γ‖²·L/(2c)")
    rows = []
    for s2, L in sorted((s2, L) for s2, L in measured if L in SHOWN):
        found = measured[s2, L]
        level, bias = s2 / math.log(L), limits.shrinkage(s2, L) * math.sqrt(s2)
        errors = (found.rmse, ratio(found, s2, L), found.bias.value, bias)
        tokens = (found.effective.value, limits.effective_tokens(s2, L))
        rows.append((s2, L, level, limits.regime(level), *errors, *tokens, L * found.gradient.value / _gradient(s2)))
    slopes = []
    for s2 in VARIANCES:
        both = (slope(LENGTHS, rmses(measured, s2)), slope(LENGTHS[-4:], rmses(measured, s2, LENGTHS[-4:])))
        gradient = slope(LENGTHS, [math.sqrt(measured[s2, L].gradient.value) for L in LENGTHS])
        slopes.append((s2, *both, gradient, limits.error_slope(s2 / math.log(LENGTHS[-1]))))
    of_slopes = ("s²", "slope, all", "last four", "gradient", "heuristic at L = 65536")
    return [
        Grid("Softmax over L Gaussian tokens against its limit, d = 4", columns, rows),
        Grid("Slopes of the rmse against L", of_slopes, slopes),
    ]


def difference(variance: float, dims: int = DIMS) -> float:
    """(2e) for Γ = I."""
    return limits.difference_error(variance, float(dims), variance)


def isotropic_length(dims: int, variance: float, eps: float) -> float:
    """L_eps of softmax against linear attention over the same prompt, Γ = I."""
    return limits.prompt_length(difference(variance, dims), variance, eps)


def relative_rms(length: int, variance: float, dims: int, prompts: int, source: torch.Generator) -> float:
    """|softmax − linear attention| over |Γa|, root mean square over prompts of N(0, I) tokens.

    Only the channel along the query is drawn: given the weights, the others are Gaussian and their mean square is known.
    """
    size, total = math.sqrt(variance), 0.0
    for count in chunks(prompts, length):
        x_NL = draw("gaussian", (count, length), source)
        weight_NL = torch.softmax(size * x_NL, -1) - size * x_NL / length
        along_N = (weight_NL * x_NL).sum(-1)
        total += (along_N.square() + (dims - 1) * weight_NL.square().sum(-1)).sum().item()
    return math.sqrt(total / prompts / variance)


def length_part(prompts: int, source: torch.Generator) -> Part:
    made, rows = [], []
    for dims, variance, eps in CASES:
        length = round(isotropic_length(dims, variance, eps))
        # rare tokens carry the error where logits are large
        found = relative_rms(length, variance, dims, prompts if variance <= 1 else 8 * prompts, source)
        rows.append((dims, variance, eps, length, found))
        if variance <= 1:
            text = f"relative rms at L_eps = {length}, d = {dims}, s² = {variance:g}"
            made.append(claims.near_relative("2.2 at L_eps", text, found, eps, 0.05))
    fine = [0.1 * 1.2**step for step in range(25)]
    curves = [Curve(f"d = {dims}", fine, [isotropic_length(dims, s2, 0.1) for s2 in fine]) for dims in (16, 64, 128)]
    caption = "Tokens from which softmax is linear attention to 10 %, Γ = I (2e): small logits are not the easiest."
    plot = Plot("length", caption, "variance s² of the logits", "prompt length", curves, log_x=True, log_y=True)
    columns = ("d", "s²", "eps", "L_eps", "relative rms there")
    return Part(made, [Grid("Is softmax linear at the predicted length?", columns, rows)], [plot])
