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

# N prompts, L tokens, Q queries, D channels, R tables

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from maclaurin.data.tasks.regression import Regression as Task
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import Mean, chunks, draw, eye, prompts_for
from maclaurin.lab.experiments.long_prompt.queries import Table
from maclaurin.lab.result import Curve, Grid, Part, Plot

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
        return cls(eye(dims), eye(dims), prior, noise)


def linear_risk(law: Regression, map_DD: Tensor, length: int) -> float:
    """2R of linear attention with G = bA: exact at every L."""
    sigma, G = law.prompt_DD, map_DD
    second = (1 + 1 / length) * sigma @ sigma + sigma.trace() / length * sigma  # E of the squared empirical covariance
    inner = G.T @ second @ G - G.T @ sigma - sigma @ G + eye(len(sigma))
    noise = law.noise / length * (law.query_DD @ G.T @ sigma @ G).trace()
    return (law.prior * (law.query_DD @ inner).trace() + noise).item()


def best_linear(law: Regression, length: int) -> Tensor:
    """The G of least risk, whatever the law of the queries."""
    ridge = (law.prompt_DD.trace() + law.noise / law.prior) / length
    return torch.linalg.inv((1 + 1 / length) * law.prompt_DD + ridge * eye(len(law.prompt_DD)))


def linear_optimum(law: Regression, length: int) -> float:
    return linear_risk(law, best_linear(law, length), length)


def linear_constant(law: Regression) -> float:
    """L·2R of the best linear attention where only the term in 1/L is left."""
    far = 10**9
    return far * linear_optimum(law, far)


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
    best, inverse = best_size(law), torch.linalg.inv(law.prompt_DD)
    end = (inverse @ inverse).trace().rsqrt().item()  # k* = tr(Σ⁻²)^{−1/2}: where the flow of infinite prompts ends
    softmax, at_end = softmax_risk(law, best, length), softmax_risk(law, end, length)
    ratio = softmax_risk(law, best, 1) / linear_constant(law)
    warning = ""
    if end >= 0.4:
        constant = "infinite" if math.isinf(at_end) else f"{at_end * length:.0f}"
        warning = f"the infinite-prompt endpoint has k* = {end:.3f} ≥ 0.4: its 1/L constant is {constant}; train at finite L"
    return RegressionReport(linear_optimum(law, length), softmax, best, ratio, end, at_end, warning)


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


@dataclass(frozen=True)
class Case:
    """The sizes k that softmax is asked at on prompts of one law and length."""

    name: str
    law: Regression
    length: int
    sizes: tuple[float, ...]
    corrected: dict[float, float] = field(default_factory=dict)  # k: risk; the first figures were of few prompts


def cases(as_published: bool = False) -> list[Case]:
    four, five, published = Regression.isotropic(4), Regression.isotropic(5), official_law(as_published)
    return [
        Case("d = 4", four, 64, (0.1, 0.5)),
        Case("d = 4", four, 1024, (0.1, 0.2, 0.5)),
        Case("d = 4", four, 4096, (0.1, 0.2, 0.5), {0.2: 0.0169, 0.5: 0.0448}),
        Case("d = 5", five, 1024, (0.1, 0.447)),
        Case("d = 5, ρ = .5", published, 100, (0.1, 0.2)),
        Case("d = 5, ρ = .5", published, 1000, (0.1, 0.15), {} if as_published else {0.15: 0.0205}),
    ]


def official_law(as_published: bool = False) -> Regression:
    """The authors' experiment: d = 5, ρ = .5, τ² = 1/5, σ² = .1. As published, prompts have RRRᵀRᵀ and queries I."""
    sigma = Task().covariance()
    if not as_published:
        return Regression(sigma, sigma, 0.2, 0.1)
    twice = torch.linalg.matrix_power(torch.linalg.cholesky(sigma), 2)
    return Regression(twice @ twice.T, eye(5), 0.2, 0.1)


def linear_risks(law: Regression, length: int, prompts: int, source: torch.Generator) -> tuple[Mean, Mean]:
    """2R of the best linear attention and of ridge regression over drawn prompts; w, noise and query are integrated."""
    root, G = torch.linalg.cholesky(law.prompt_DD), best_linear(law, length)
    one = eye(len(root))
    linear, ridge = [], []
    for count in chunks(prompts, length):
        x_NLD = draw("gaussian", (count, length, len(root)), source) @ root.T
        gram_NDD = x_NLD.mT @ x_NLD / length
        left_NDD = G.T @ gram_NDD - one
        noise_N = law.noise / length * _trace(law.query_DD @ G.T @ gram_NDD @ G)
        linear.append(law.prior * _trace(law.query_DD @ left_NDD @ left_NDD.mT) + noise_N)
        if law.noise:
            posterior_NDD = torch.linalg.inv(length / law.noise * gram_NDD + one / law.prior)
            ridge.append(_trace(law.query_DD @ posterior_NDD))
    return Mean.of(torch.cat(linear)), Mean.of(torch.cat(ridge)) if ridge else Mean(0.0, 0.0)


def measured_risk(law: Regression, size: float, tables: Sequence[Table], source: torch.Generator) -> Mean:
    """2R of softmax at A = κΣ⁻¹, b = 1/κ, k = κ² = `size`."""
    return drawn_risk(law, math.sqrt(size) * torch.linalg.inv(law.prompt_DD), 1 / math.sqrt(size), tables, source)


def task_risks(law: Regression, task: Task, size: float, prompts: int, seed: int) -> dict[str, Mean]:
    """Mean square errors on the noisy labels of the task itself, of the best linear attention and softmax at k = `size`."""
    samples = task.draw(prompts, np.random.default_rng((seed, 6)))
    tokens_NLD, y_N = samples.inputs.double(), samples.labels.double()
    x_NLD, y_NL, query_ND = tokens_NLD[:, :-1, :-1], tokens_NLD[:, :-1, -1], tokens_NLD[:, -1, :-1]
    inverse, G = torch.linalg.inv(law.prompt_DD), best_linear(law, task.length)
    linear_N = (y_NL * (x_NLD @ (query_ND @ G.T)[..., None])[..., 0]).mean(-1)
    logits_NL = math.sqrt(size) * (x_NLD @ (query_ND @ inverse)[..., None])[..., 0]
    softmax_N = (torch.softmax(logits_NL, -1) * y_NL).sum(-1) / math.sqrt(size)
    return {name: Mean.of((found - y_N).square()) for name, found in (("linear", linear_N), ("softmax", softmax_N))}


def part(tokens: int, source: torch.Generator, seed: int, as_published: bool = False) -> Part:
    made: list[claims.Claim] = []
    rows: list[tuple[object, ...]] = []
    tables: dict[int, list[Table]] = {}
    for case in cases(as_published):
        linear, ridge = linear_risks(case.law, case.length, prompts_for(case.length, tokens, most=10000), source)
        if case.length not in tables:
            tables[case.length] = drawn_tables(case.length, tokens // case.length, source)
        exact = linear_optimum(case.law, case.length)
        where, name = f"{case.name}, L = {case.length}", (case.name, case.length)
        made.append(claims.near_relative("2.6 linear", f"linear attention measured, {where}", linear.value, exact, 0.05))
        rows.append((*name, "linear", None, linear.value, linear.error, exact))
        if case.law.noise:
            rows.append((*name, "ridge", None, ridge.value, ridge.error, None))
        for size in case.sizes:
            mean = measured_risk(case.law, size, tables[case.length], source)
            formula = softmax_risk(case.law, size, case.length)
            rows.append((*name, "softmax", size, mean.value, mean.error, formula if math.isfinite(formula) else None))
            if size in case.corrected:
                # rare queries decide these means, the more the larger k
                allowed, text = 0.1 if size < 0.3 else 0.25, f"softmax at k = {size:.3g}, {where}"
                expected = case.corrected[size]
                made.append(claims.near_relative("2.6 softmax", text, mean.value, expected, allowed, claims.CORRECTED))
    made += [*_constants(), *_on_the_task(tokens, seed, as_published, source)]
    columns = ("tokens", "L", "attention", "k", "2R", "standard error", "formula")
    grid, plot = _sizes()
    return Part(made, [Grid("In-context regression: risks", columns, rows), grid], [plot])


def _constants() -> list[claims.Claim]:
    made = []
    for dims, size, ratio in ((4, 0.1396, 3.29), (5, 0.1228, 3.19), (16, 0.0525, 2.88), (64, 0.0149, 2.76)):
        report = icl_regression(Regression.isotropic(dims), 1000)
        made += [
            claims.near("2.6 best k", f"d = {dims}", report.best_size, size, 0.0001),
            claims.near("2.6 ratio", f"softmax over linear attention at best, d = {dims}", report.ratio, ratio, 0.006),
        ]
    wide = icl_regression(Regression.isotropic(512), 1000)
    end = {dims: softmax_risk(Regression.isotropic(dims), dims**-0.5, 1) for dims in (2, 3, 4, 5)}
    infinite = all(math.isinf(end[dims]) for dims in (2, 3, 4))
    warned = [dims for dims in (2, 3, 4, 5, 6, 7, 16) if icl_regression(Regression.isotropic(dims), 1000).warning]
    text = "the infinite-prompt endpoint is warned of (k* ≥ .4)"
    return [
        *made,
        claims.near("2.6 ratio", "softmax over linear attention tends to e, d = 512", wide.ratio, math.e, 0.01),
        claims.near_relative("2.6 endpoint", "1/L constant at k* = 1/√5, d = 5", end[5], 16165, 0.001),
        claims.true("2.6 endpoint", text, f"d = {warned}", warned == [2, 3, 4, 5, 6], "d = 2 to 6"),
        claims.true("2.6 endpoint", "its 1/L constant is infinite for d ≤ 4", str(infinite).lower(), infinite, "true"),
    ]


def _on_the_task(tokens: int, seed: int, as_published: bool, source: torch.Generator) -> list[claims.Claim]:
    """The task draws w and the noise, here they were integrated: both must give one risk."""
    law, size, length = official_law(as_published), 0.1, 100
    found = task_risks(law, Task(length=length, as_published=as_published), size, prompts_for(length, tokens), seed)
    linear, _ = linear_risks(law, length, prompts_for(length, tokens, 5000), source)
    softmax = measured_risk(law, size, drawn_tables(length, prompts_for(length, tokens, 5000), source), source)
    made = []
    for (name, label), mean in zip(found.items(), (linear, softmax), strict=True):
        expected = law.noise + mean.value
        value = abs(label.value - expected) / math.hypot(label.error, mean.error)
        text = f"{name}: mean square on labels of the task minus (noise + 2R) = {expected:.4f}, in standard errors"
        made.append(claims.at_most("2.4 task", text, value, 4.0))
    return made


def _trace(x_NDD: Tensor) -> Tensor:
    return x_NDD.diagonal(dim1=-2, dim2=-1).sum(-1)


def _sizes() -> tuple[Grid, Plot]:
    columns = ("d", "best k", "softmax/linear", "endpoint k*", "L·2R at k*", "L·2R at best k")
    rows = []
    for dims in (2, 4, 5, 16, 64):
        report = icl_regression(Regression.isotropic(dims), 1)
        end = report.endpoint if math.isfinite(report.endpoint) else "infinite"
        rows.append((dims, report.best_size, report.ratio, report.endpoint_size, end, report.softmax))
    curves = []
    for dims in (4, 5, 16, 64):
        law = Regression.isotropic(dims)
        top = min(0.49, 4 * best_size(law))
        grid = [top * step / 60 for step in range(4, 61)]
        ratios = {size: softmax_risk(law, size, 1) / linear_constant(law) for size in grid}
        curves.append(Curve.of(f"d = {dims}", {size: ratio for size, ratio in ratios.items() if ratio < 20}))
    caption = "Risk of softmax over that of the best linear attention at long prompts, against the size k of the query."
    return (
        Grid("Size of the query that softmax wants at long finite prompts, Σ = I", columns, rows),
        Plot("sizes", caption, "k", "risk, softmax over linear", curves, log_x=True, log_y=True),
    )
