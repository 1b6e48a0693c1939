"""The linearisation report on activations whose answer is known: Gaussian ones, and three for which it must say no."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.long_prompt import formulas
from maclaurin.lab.experiments.long_prompt.draws import draw
from maclaurin.lab.experiments.long_prompt.lengths import isotropic_length
from maclaurin.lab.experiments.long_prompt.linearisation import LinearisationReport, linearisation_report
from maclaurin.lab.experiments.long_prompt.part import Part

# B prompts, Q queries, L tokens, D channels; one head

DIMS = 16


def activations(
    law: str, variance: float, length: int, prompts: int, source: torch.Generator, queries: int = 64
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v with v = k, logits of variance s² in every direction, for scale 1.

    "two clusters": ±1 along every query, with a tenth of noise. "heavy tails": Laplace channels, each query reads one.
    Anything else: Gaussian.
    """
    q_BQD = draw("gaussian", (prompts, queries, DIMS), source)
    if law == "two clusters":
        q_BQD = torch.zeros_like(q_BQD)
        q_BQD[..., 0] = draw("rademacher", (prompts, queries), source)
    elif law == "heavy tails":
        axis = torch.randint(DIMS, (prompts, queries, 1), generator=source, device="cpu")
        q_BQD = torch.zeros_like(q_BQD).scatter(-1, axis, 1.0)
    q_BQD = q_BQD / q_BQD.norm(dim=-1, keepdim=True) * math.sqrt(variance)
    k_BLD = draw("laplace" if law == "heavy tails" else "gaussian", (prompts, length, DIMS), source)
    if law == "two clusters":
        k_BLD[..., 0] = math.sqrt(0.99) * draw("rademacher", (prompts, length), source) + 0.1 * k_BLD[..., 0]
    q_BQ1D, k_BL1D = q_BQD[:, :, None], k_BLD[:, :, None]
    return q_BQ1D, k_BL1D, k_BL1D


def part(source: torch.Generator, eps: float, length: int = 4096) -> Part:
    sizes = {"gaussian": 1.0, "two clusters": 4.0, "heavy tails": 1.0, "frozen": 20.0}
    found = {
        law: linearisation_report(*activations(law, variance, length, 4, source), eps=eps, scale=1.0).heads[0]
        for law, variance in sizes.items()
    }
    good = found["gaussian"]
    expected = isotropic_length(DIMS, sizes["gaussian"], eps)
    stated = max(round(good.length_surrogate), 128)
    there = linearisation_report(*activations("gaussian", 1.0, stated, 64, source, 16), eps=eps, scale=1.0).heads[0]
    ratio = formulas.gradient_error(1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 1.0) / formulas.softmax_error(1.0, 4.0, 1.0)
    text = "L_eps that the report states for Gaussian activations, d = 16, s² = 1"
    made = [
        claims.true("B3", "Gaussian activations are linear in the limit", good.verdict, good.linear),
        claims.near_relative("B2", "their 1/Σp² over L/e^{s²}", good.effective / good.effective_predicted, 1.0, 0.1),
        claims.near_relative("B4", text, good.length_linear, expected, 0.05),
        claims.near("B4", f"error at the length it states ({stated}) over eps", there.error / eps, 1.0, 0.05),
        claims.near("B5", "slope over parts of their prompts", good.slope, good.slope_predicted, 0.06),
        claims.near("B6", "(2c) over (2a): prompts for the gradient, d = 4, s² = 1", ratio, 6.2, 1e-9),
        claims.near("B3 gain", "gain of two clusters at a = 2: (tanh 2)/2", found["two clusters"].gain, 0.482, 0.02),
    ]
    for law in ("two clusters", "heavy tails", "frozen"):
        no = found[law].verdict.startswith("no:")
        made.append(claims.true("B3", f"not linear: {law}", found[law].verdict, no, "no"))
    together = LinearisationReport(length, eps, list(found.values()), {})
    names = [f"{law}, s² = {variance:g}" for law, variance in sizes.items()]
    return Part(made, together.grids("Activations, d = 16", names))
