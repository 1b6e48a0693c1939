"""Gradient flow of the infinite prompt and SGD at finite length, in the reduced parameters (A, b) of the regression.

prediction b Σ_i p_i y_i,  p = softmax(x_iᵀA x_q),  loss ½(prediction − w·x_q)²,  x, x_q ~ N(0, Σ), w ~ N(0, I), no noise
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import chunks, draw, prompts_for, slope
from maclaurin.lab.experiments.long_prompt.risks import Regression, drawn_risk, drawn_tables
from maclaurin.lab.result import Curve, Grid, Part, Plot

# N prompts, L tokens, D channels

DIMS = 4
BATCH, RATE = 128, 0.02


@dataclass(frozen=True)
class Parameters:
    A: Tensor  # (D, D)
    b: float

    def distance(self, other: Parameters) -> float:
        return math.hypot((self.A - other.A).norm().item(), self.b - other.b)


def covariance(scale: float = 1.0) -> Tensor:
    index = torch.arange(DIMS, dtype=torch.long, device="cpu")
    return scale * torch.tensor(0.5, dtype=torch.float64, device="cpu") ** (index - index[:, None]).abs()


def start(sigma_DD: Tensor) -> Parameters:
    """A = αΘΘᵀ with ΘΘᵀ = I/2, b = α: half the largest α that the theorem allows, .2397 for the full Σ."""
    alpha = 1 / (math.sqrt(2) * DIMS**0.25 * torch.linalg.matrix_norm(sigma_DD, 2).item())
    return Parameters(alpha * torch.eye(DIMS, dtype=torch.float64, device="cpu") / 2, alpha)


def optimum(sigma_DD: Tensor) -> Parameters:
    """Where the infinite flow ends: b* = tr(Σ⁻²)^{1/4}, A* = Σ⁻¹/b*."""
    inverse = torch.linalg.inv(sigma_DD)
    b = (inverse @ inverse).trace().item() ** 0.25
    return Parameters(inverse / b, b)


def infinite_risk(parameters: Parameters, sigma_DD: Tensor) -> float:
    missed = parameters.b * sigma_DD @ parameters.A - torch.eye(DIMS, dtype=torch.float64, device="cpu")
    return ((missed @ sigma_DD @ missed.T).trace() / 2).item()


def infinite_gradient(parameters: Parameters, sigma_DD: Tensor) -> Parameters:
    """Of the risk of the infinite prompt."""
    A, b, square = parameters.A, parameters.b, sigma_DD @ sigma_DD
    in_b = b * (A.T @ square @ A @ sigma_DD).trace() - (A.T @ square).trace()
    return Parameters(b * b * square @ A @ sigma_DD - b * square, in_b.item())


def finite_gradient(parameters: Parameters, root_DD: Tensor, length: int, batch: int, source: torch.Generator) -> Parameters:
    """Of the mean loss over a batch of fresh prompts."""
    in_A, in_b = torch.zeros(DIMS, DIMS, dtype=torch.float64, device="cpu"), 0.0
    for count in chunks(batch, length):
        x_NLD = draw("gaussian", (count, length, DIMS), source) @ root_DD.T
        query_ND = draw("gaussian", (count, DIMS), source) @ root_DD.T
        weight_ND1 = draw("gaussian", (count, DIMS, 1), source)
        y_NL1 = x_NLD @ weight_ND1
        p_NL1 = torch.softmax(x_NLD @ (query_ND @ parameters.A.T)[..., None], 1)
        output_N11 = p_NL1.mT @ y_NL1
        residual_N11 = parameters.b * output_N11 - query_ND[:, None] @ weight_ND1
        tilted_ND1 = x_NLD.mT @ (p_NL1 * (y_NL1 - output_N11))
        in_A += ((parameters.b * residual_N11 * tilted_ND1) @ query_ND[:, None]).sum(0)
        in_b += (residual_N11 * output_N11).sum().item()
    return Parameters(in_A / batch, in_b / batch)


def step(parameters: Parameters, gradient: Parameters, rate: float) -> Parameters:
    return Parameters(parameters.A - rate * gradient.A, parameters.b - rate * gradient.b)


def flow(sigma_DD: Tensor, rate: float, times: Sequence[float]) -> list[Parameters]:
    """Euler steps of the infinite flow; the parameters at these times."""
    parameters, kept, done = start(sigma_DD), [], 0
    for time in times:
        steps = round(time / rate)
        for _ in range(steps - done):
            parameters = step(parameters, infinite_gradient(parameters, sigma_DD), rate)
        kept.append(parameters)
        done = steps
    return kept


def train(sigma_DD: Tensor, length: int, time: float, rate: float, batch: int, source: torch.Generator) -> Parameters:
    """SGD at finite length."""
    root_DD, parameters = torch.linalg.cholesky(sigma_DD), start(sigma_DD)
    for _ in range(round(time / rate)):
        parameters = step(parameters, finite_gradient(parameters, root_DD, length, batch, source), rate)
    return parameters


def part(lengths: Sequence[int], early_lengths: Sequence[int], time: float, tokens: int, source: torch.Generator) -> Part:
    """lengths: of prompts to train on until `time`; early_lengths: to be followed for a short time."""
    sigma = covariance()
    law, ideal = Regression(sigma, sigma, 1.0, 0.0), optimum(sigma)
    (last,) = flow(sigma, RATE, [60.0])
    made = [
        claims.at_most(
            "2.5 risk", "risk of the infinite prompt where Euler steps of its flow end", infinite_risk(last, sigma), 1e-6
        )
    ]
    rows = []
    for length in lengths:
        trained = train(sigma, length, time, RATE, BATCH, source)
        tables = drawn_tables(length, prompts_for(length, tokens), source)
        risk, at_ideal = (drawn_risk(law, found.A, found.b, tables, source).value / 2 for found in (trained, ideal))
        gain = (trained.b * sigma @ trained.A).trace().item() / DIMS
        rows.append((length, risk, at_ideal, gain, trained.distance(ideal)))
        text = f"risk trained at L = {length} over that of the infinite optimum"
        made.append(claims.at_most("2.7 transfer", text, risk / at_ideal, 1.0))
    risks = [row[1] for row in rows]
    seen, falls = " ".join(f"{value:.3f}" for value in risks), risks == sorted(risks, reverse=True)
    made.append(claims.true("2.7 falls", "the trained risk falls with L, towards 0", seen, falls))
    early = _distances(sigma, 2.0, RATE, 1024, early_lengths, source)
    benign = _distances(covariance(0.25), 10.0, 0.1, 1024, early_lengths, source)
    short = [L for L in early_lengths if L <= 128]
    value = slope(short, [benign[L] for L in short])
    made.append(claims.between("2.7 benign", f"slope of the distance to the flow, Σ/4, L ≤ {short[-1]}", value, -1.0, -0.6))
    columns = ("L", "trained ½ MSE", "infinite optimum", "gain", "distance to it")
    distances = [(L, early[L], benign[L]) for L in early_lengths]
    grids = [
        Grid(f"SGD at finite length, t = {time:g}, batch {BATCH}", columns, rows),
        Grid("Distance of the parameters to the infinite flow", ("L", "Σ, t = 2", "Σ/4, t = 10"), distances),
    ]
    return Part(made, grids, [_plot(early, benign)])


def _plot(early: dict[int, float], benign: dict[int, float]) -> Plot:
    first = next(iter(benign))
    curves = [
        Curve("‖Σ‖ = 2.1", list(early), list(early.values())),
        Curve("a quarter of it", list(benign), list(benign.values())),
        Curve("a quarter of it", list(benign), [benign[first] * first / L for L in benign], dashed=True),
    ]
    caption = "Distance of (A, b) trained at length L to the infinite-prompt flow at a fixed time; dotted: 1/L."
    return Plot("training", caption, "prompt length L", "distance", curves, log_x=True, log_y=True)


def _distances(
    sigma_DD: Tensor, time: float, rate: float, batch: int, lengths: Sequence[int], source: torch.Generator
) -> dict[int, float]:
    (ideal,) = flow(sigma_DD, rate, [time])
    return {length: train(sigma_DD, length, time, rate, batch, source).distance(ideal) for length in lengths}
