"""Gradient flow of the infinite prompt and SGD at finite length, in the reduced parameters (A, b) of the regression.

prediction b Σ_i p_i y_i,  p = softmax(x_iᵀA x_q),  loss ½(prediction − w·x_q)²,  x, x_q ~ N(0, Σ), w ~ N(0, I), no noise
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.data.tasks.regression import Regression as Task
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import draw, eye, prompts_for, slope
from maclaurin.lab.experiments.long_prompt.regression import Regression, drawn_risk, drawn_tables
from maclaurin.lab.result import Curve, Grid, Part, Plot

# N prompts, L tokens, D channels

DIMS = 4
BATCH, RATE, TIME = 128, 0.02, 60.0
LENGTHS, EARLY = (16, 64, 256, 1024), (8, 16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True)
class Parameters:
    A: Tensor  # (D, D)
    b: Tensor  # ()

    def distance(self, other: Parameters) -> float:
        return math.hypot((self.A - other.A).norm().item(), (self.b - other.b).item())


def start(sigma_DD: Tensor) -> Parameters:
    """A = αΘΘᵀ with ΘΘᵀ = I/2, b = α: half the largest α that the theorem allows, .2397 for the full Σ."""
    alpha = 1 / (math.sqrt(2) * DIMS**0.25 * torch.linalg.matrix_norm(sigma_DD, 2))
    return Parameters(alpha * eye(DIMS) / 2, alpha)


def optimum(sigma_DD: Tensor) -> Parameters:
    """Where the infinite flow ends: b* = tr(Σ⁻²)^{1/4}, A* = Σ⁻¹/b*."""
    inverse = torch.linalg.inv(sigma_DD)
    b = (inverse @ inverse).trace() ** 0.25
    return Parameters(inverse / b, b)


def infinite_risk(at: Parameters, sigma_DD: Tensor) -> Tensor:
    missed = at.b * sigma_DD @ at.A - eye(DIMS)
    return (missed @ sigma_DD @ missed.T).trace() / 2


def finite_risk(at: Parameters, root_DD: Tensor, length: int, batch: int, source: torch.Generator) -> Tensor:
    """The mean loss over a batch of fresh prompts."""
    x_NLD = draw("gaussian", (batch, length, DIMS), source) @ root_DD.T
    query_ND = draw("gaussian", (batch, DIMS), source) @ root_DD.T
    weight_ND1 = draw("gaussian", (batch, DIMS, 1), source)
    p_NL1 = torch.softmax(x_NLD @ (query_ND @ at.A.T)[..., None], 1)
    predicted_N11 = at.b * p_NL1.mT @ (x_NLD @ weight_ND1)
    return (predicted_N11 - query_ND[:, None] @ weight_ND1).square().mean() / 2


def descend(at: Parameters, risk: Callable[[Parameters], Tensor], time: float, rate: float) -> Parameters:
    """Steps of plain gradient descent, which are Euler's of the flow: the trainer's optimizer would not follow it."""
    moving = Parameters(at.A.clone().requires_grad_(), at.b.clone().requires_grad_())
    optimizer = torch.optim.SGD([moving.A, moving.b], lr=rate)
    for _ in range(round(time / rate)):
        optimizer.zero_grad()
        risk(moving).backward()
        optimizer.step()
    return Parameters(moving.A.detach(), moving.b.detach())


def flow(sigma_DD: Tensor, rate: float, time: float) -> Parameters:
    """Of the infinite prompt, until that time."""
    return descend(start(sigma_DD), lambda at: infinite_risk(at, sigma_DD), time, rate)


def train(sigma_DD: Tensor, length: int, time: float, rate: float, batch: int, source: torch.Generator) -> Parameters:
    """SGD at finite length."""
    root_DD = torch.linalg.cholesky(sigma_DD)
    return descend(start(sigma_DD), lambda at: finite_risk(at, root_DD, length, batch, source), time, rate)


def part(tokens: int, source: torch.Generator, longest: int) -> Part:
    """Prompts up to the longest are trained on until TIME, and some beyond them are followed for a short time."""
    lengths = [L for L in LENGTHS if L <= longest]
    early_lengths = [L for L in EARLY if L <= 2 * longest]
    sigma = Task(dimensions=DIMS).covariance()
    law, ideal = Regression(sigma, sigma, 1.0, 0.0), optimum(sigma)
    ended = infinite_risk(flow(sigma, RATE, TIME), sigma).item()
    made = [claims.at_most("2.5 risk", "risk of the infinite prompt where Euler steps of its flow end", ended, 1e-6)]
    rows = []
    for length in lengths:
        trained = train(sigma, length, TIME, RATE, BATCH, source)
        tables = drawn_tables(length, prompts_for(length, tokens), source)
        risk, at_ideal = (drawn_risk(law, at.A, at.b.item(), tables, source).value / 2 for at in (trained, ideal))
        gain = (trained.b * sigma @ trained.A).trace().item() / DIMS
        rows.append((length, risk, at_ideal, gain, trained.distance(ideal)))
        text = f"risk trained at L = {length} over that of the infinite optimum"
        made.append(claims.at_most("2.7 transfer", text, risk / at_ideal, 1.0))
    risks = [row[1] for row in rows]
    seen, falls = " ".join(f"{value:.3f}" for value in risks), risks == sorted(risks, reverse=True)
    made.append(claims.true("2.7 falls", "the trained risk falls with L, towards 0", seen, falls))
    early = distances(sigma, 2.0, RATE, 1024, early_lengths, source)
    benign = distances(sigma / 4, 10.0, 0.1, 1024, early_lengths, source)
    short = [L for L in early_lengths if L <= 128]
    value = slope(short, [benign[L] for L in short])
    made.append(claims.between("2.7 benign", f"slope of the distance to the flow, Σ/4, L ≤ {short[-1]}", value, -1.0, -0.6))
    columns = ("L", "trained ½ MSE", "infinite optimum", "gain", "distance to it")
    followed = [(L, early[L], benign[L]) for L in early_lengths]
    grids = [
        Grid(f"SGD at finite length, t = {TIME:g}, batch {BATCH}", columns, rows),
        Grid("Distance of the parameters to the infinite flow", ("L", "Σ, t = 2", "Σ/4, t = 10"), followed),
    ]
    first = early_lengths[0]
    curves = [
        Curve.of("‖Σ‖ = 2.1", early),
        Curve.of("a quarter of it", benign),
        Curve.of("a quarter of it", {L: benign[first] * first / L for L in benign}, dashed=True),
    ]
    caption = "Distance of (A, b) trained at length L to the infinite-prompt flow at a fixed time; dotted: 1/L."
    return Part(made, grids, [Plot("training", caption, "prompt length L", "distance", curves, log_x=True, log_y=True)])


def distances(
    sigma_DD: Tensor, time: float, rate: float, batch: int, lengths: Sequence[int], source: torch.Generator
) -> dict[int, float]:
    ideal = flow(sigma_DD, rate, time)
    return {length: train(sigma_DD, length, time, rate, batch, source).distance(ideal) for length in lengths}
