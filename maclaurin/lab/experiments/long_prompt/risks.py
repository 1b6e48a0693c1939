"""Risks of in-context linear regression with one attention head (Boursier and Boyer, arXiv 2512.11784, section 5).

Tokens (x, y), x ~ N(0, Σ), y = w·x + ε, w ~ N(0, τ²I), ε ~ N(0, σ²); query (x_q, 0), x_q ~ N(0, Σ_q). The head predicts

    b Σ_i p_i y_i,  p = softmax(x_iᵀA x_q)        or, linear attention, b (1/L) Σ_i y_i x_iᵀA x_q

and its risk here is 2R = E(prediction − w·x_q)². In the limit of long prompts both are b w·Σ A x_q, so that every
A = κΣ⁻¹, b = 1/κ is optimal; at finite L the size k = κ² decides what softmax costs.

Any other parameters are judged by drawn prompts and queries. With x = Σ^{1/2}z the logits are z·a, a = Σ^{1/2}A x_q = s·n
with |n| = 1. Over a prompt, Σ p_i z_i is (1 − shrinkage)·s on average along n and Gaussian with variance Σp² across it, so
that with w and the noise integrated

    2R = τ²E[|m|² − 2b s·shrinkage·m·Σ^{1/2}n + b²(nᵀΣn·E(Σ p_i z_i − s)² + (tr Σ − nᵀΣn)·E Σp²)] + σ²b²·E Σp²,
    m = bΣA x_q − x_q
"""

# Q queries, D channels, R tables

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from maclaurin.lab.experiments.draws import Mean, draw
from maclaurin.lab.experiments.long_prompt.queries import Table

QUERIES = 2**16  # rare ones decide where logits are large
TABLES = 16


@dataclass(frozen=True)
class Regression:
    """The law of the tokens: Σ, Σ_q (D, D), τ² and σ²."""

    prompt_DD: Tensor
    query_DD: Tensor
    prior: float
    noise: float

    @property
    def power(self) -> float:
        """τ² tr Σ + σ²: the mean square of y."""
        return self.prior * self.prompt_DD.trace().item() + self.noise

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Of x_qᵀΣ⁻¹x_q: the variance of each of its independent squares, and the part of |x_q|² that goes with it."""
        root_DD = torch.linalg.cholesky(self.query_DD)
        variance_D, vectors_DD = torch.linalg.eigh(root_DD.T @ torch.linalg.solve(self.prompt_DD, root_DD))
        return variance_D, (root_DD @ vectors_DD).square().sum(0)

    @classmethod
    def isotropic(cls, dims: int, prior: float = 1.0, noise: float = 0.0) -> Regression:
        eye = torch.eye(dims, dtype=torch.float64, device="cpu")
        return cls(eye, eye, prior, noise)


def linear_risk(law: Regression, map_DD: Tensor, length: int) -> float:
    """2R of linear attention with G = bA: exact at every L."""
    sigma, G = law.prompt_DD, map_DD
    second = (1 + 1 / length) * sigma @ sigma + sigma.trace() / length * sigma  # E of the squared empirical covariance
    inner = G.T @ second @ G - G.T @ sigma - sigma @ G + torch.eye(len(sigma), dtype=sigma.dtype, device="cpu")
    noise = law.noise / length * (law.query_DD @ G.T @ sigma @ G).trace()
    return (law.prior * (law.query_DD @ inner).trace() + noise).item()


def best_linear(law: Regression, length: int) -> Tensor:
    """The G of least risk, whatever the law of the queries."""
    eye = torch.eye(len(law.prompt_DD), dtype=torch.float64, device="cpu")
    ridge = (law.prompt_DD.trace() + law.noise / law.prior) / length
    return torch.linalg.inv((1 + 1 / length) * law.prompt_DD + ridge * eye)


def softmax_risk(law: Regression, size: float, length: float) -> float:
    """2R of softmax at A = κΣ⁻¹, b = 1/κ, k = κ² = `size`, to order 1/L; infinite where rare queries make it so.

    E e^{s²} [(τ² tr Σ + σ²)/k + τ²|x_q|²] / L with s² = k x_qᵀΣ⁻¹x_q; for Σ_q = Σ that needs k < 1/2.
    """
    spread_D, share_D = law.spectrum
    left_D = 1 - 2 * size * spread_D
    if left_D.min() <= 0:
        return math.inf
    mass = torch.exp(-left_D.log().sum() / 2)
    return (mass * (law.power / size + law.prior * (share_D / left_D).sum())).item() / length


def best_size(law: Regression) -> float:
    """The k of least softmax risk, by golden sections: its logarithm is convex in k."""
    golden = (math.sqrt(5) - 1) / 2
    low, high = 1e-6, 1 / (2 * law.spectrum[0].max().item())
    while high - low > 1e-9:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if softmax_risk(law, left, 1) < softmax_risk(law, right, 1):
            high = right
        else:
            low = left
    return (low + high) / 2


def endpoint_size(law: Regression) -> float:
    """k* = tr(Σ⁻²)^{−1/2}: where the gradient flow of infinite prompts ends."""
    inverse = torch.linalg.inv(law.prompt_DD)
    return (inverse @ inverse).trace().rsqrt().item()


@dataclass(frozen=True)
class RegressionReport:
    """In-context regression at one length. risks are 2R; `warning` is empty where the endpoint is harmless."""

    linear: float  # the best linear attention, exact
    softmax: float  # the best softmax, to order 1/L
    best_size: float
    ratio: float  # softmax over linear attention, both to order 1/L
    endpoint_size: float
    endpoint: float  # the risk of softmax there, to order 1/L
    warning: str


def icl_regression(law: Regression, length: int) -> RegressionReport:
    """What one head can reach on prompts of this length, and what the infinite-prompt optimum would cost."""
    best, end = best_size(law), endpoint_size(law)
    softmax = softmax_risk(law, best, length)
    far = 10**9  # where only the term in 1/L is left
    ratio = softmax_risk(law, best, far) / linear_risk(law, best_linear(law, far), far)
    at_end = softmax_risk(law, end, length)
    warning = ""
    if end >= 0.4:
        constant = "infinite" if math.isinf(at_end) else f"{at_end * length:.0f}"
        warning = f"the infinite-prompt endpoint has k* = {end:.3f} ≥ 0.4: its 1/L constant is {constant}; train at finite L"
    return RegressionReport(linear_risk(law, best_linear(law, length), length), softmax, best, ratio, end, at_end, warning)


def drawn_tables(length: int, prompts: int, source: torch.Generator) -> list[Table]:
    """Several, of a part of the prompts each, so that what they give has a standard error."""
    return [Table.drawn(length, max(prompts // TABLES, 1), source) for _ in range(TABLES)]


def drawn_risk(law: Regression, A_DD: Tensor, b: float, tables: Sequence[Table], source: torch.Generator) -> Mean:
    """2R over the prompts of the tables, which are of one length, and over as many queries as matter."""
    root_DD = torch.linalg.cholesky(law.prompt_DD)
    query_QD = draw("gaussian", (QUERIES, len(A_DD)), source) @ torch.linalg.cholesky(law.query_DD).T
    tilt_QD = query_QD @ A_DD.T @ root_DD
    size_Q = tilt_QD.norm(dim=-1)
    turned_QD = (tilt_QD / size_Q[:, None]) @ root_DD.T
    missed_QD = b * tilt_QD @ root_DD.T - query_QD
    along_Q = turned_QD.square().sum(-1)
    across_Q = law.prompt_DD.trace() - along_Q + law.noise / law.prior
    pull_Q = -2 * b * size_Q * (missed_QD * turned_QD).sum(-1)
    each = [
        pull_Q * table.shrinkage(size_Q) + b * b * (along_Q * table.error(size_Q) + across_Q * table.concentration(size_Q))
        for table in tables
    ]
    risk_RQ = law.prior * (missed_QD.square().sum(-1) + torch.stack(each))
    over_prompts, over_queries = Mean.of(risk_RQ.mean(1)), Mean.of(risk_RQ.mean(0))
    return Mean(over_prompts.value, math.hypot(over_prompts.error, over_queries.error))
