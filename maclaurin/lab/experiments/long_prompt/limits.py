"""The limit itself: affine for Gaussian tokens, by quadrature; something else for any other law."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import LAWS, Mean, chunks, distance, draw, eye, furthest, normal, vector
from maclaurin.lab.experiments.long_prompt import formulas
from maclaurin.lab.result import Curve, Grid, Part, Plot

TILTS = (0.5, 1.0, 2.0)
SCALES = (0.4, math.sqrt(2 - 0.4**2))  # an elliptical law of variance 1 that is not Gaussian
NODES = 60


def identity_error(source: torch.Generator, cases: int = 20) -> float:
    """Lemma 2.1 by Gauss–Hermite in two dimensions: the largest |E[V X e^{a·X}]/E[e^{a·X}] − (V m + V Γ a)| over random
    m, Γ (every other one singular), a and V.
    """
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(NODES))
    grid_P2 = torch.cartesian_prod(nodes, nodes)
    weight_P = torch.cartesian_prod(weights, weights).prod(-1)
    worst = 0.0
    for case in range(cases):
        mean, tilt = (normal(2, generator=source) for _ in range(2))
        root = normal(2, 2, generator=source)
        if case % 2:
            root[:, 1] = 0
        value = normal(3, 2, generator=source)
        tilt = tilt / max(1.0, (root.T @ tilt).norm().item())  # s ≤ 1, where so many nodes are exact to rounding
        x_P2 = mean + grid_P2 @ root.T
        tilted_P = weight_P * torch.exp(x_P2 @ tilt)
        found = value @ (tilted_P @ x_P2) / tilted_P.sum()
        worst = max(worst, distance(found, formulas.affine_limit(mean, root @ root.T, tilt, value)))
    return worst


def measured_gain(law: str, tilt: float, length: int, prompts: int, source: torch.Generator) -> Mean:
    """T_L(a)/a of one-dimensional tokens."""
    found = []
    for count in chunks(prompts, length):
        x_NL = draw(law, (count, length), source)
        found.append((torch.softmax(tilt * x_NL, -1) * x_NL).sum(-1) / tilt)
    return Mean.of(torch.cat(found))


def elliptical(variance: float, length: int, prompts: int, source: torch.Generator) -> tuple[float, float]:
    """For tokens r·Γ^{1/2}·N(0, I): the gain along Γa and the part of the mean output that is not along it, over it."""
    root_DD = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.2, -0.4, 0.7]], dtype=torch.float64, device="cpu")
    tilt_D, scales = vector((1.0, -0.5, 0.8)), vector(SCALES)
    tilt_D = tilt_D * math.sqrt(variance) / (root_DD.T @ tilt_D).norm()
    total_D = torch.zeros_like(tilt_D)
    for count in chunks(prompts, length):
        radius_NL = scales[torch.randint(2, (count, length), generator=source, device="cpu")]
        x_NLD = radius_NL[..., None] * (draw("gaussian", (count, length, 3), source) @ root_DD.T)
        total_D += (torch.softmax(x_NLD @ tilt_D, -1)[:, None] @ x_NLD).sum((0, 1))
    output_D, expected_D = total_D / prompts, root_DD @ root_DD.T @ tilt_D
    along = (output_D @ expected_D / expected_D.square().sum()).item()
    return along, ((output_D - along * expected_D).norm() / (along * expected_D).norm()).item()


def joint_covariance(length: int, prompts: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """L·Cov(T_L) of keys in 3 and values in 2 dimensions, jointly Gaussian: measured, predicted."""
    root_DD = torch.tril(normal(5, 5, generator=source), -1) * 0.6 + eye(5)
    joint_DD = root_DD @ root_DD.T
    tilt_K = normal(3, generator=source)
    tilt_K = tilt_K / (tilt_K @ joint_DD[:3, :3] @ tilt_K).sqrt()  # s² = 1
    found = []
    for count in chunks(prompts, length):
        x_NLD = draw("gaussian", (count, length, 5), source) @ root_DD.T
        found.append((torch.softmax(x_NLD[..., :3] @ tilt_K, -1)[:, None] @ x_NLD[..., 3:])[:, 0])
    shift_V = joint_DD[3:, :3] @ tilt_K
    return length * torch.cov(torch.cat(found).T), math.e * (joint_DD[3:, 3:] + shift_V[:, None] * shift_V)


def part(prompts: int, source: torch.Generator, law: str = "gaussian") -> Part:
    affine = "affine limit, by Gauss–Hermite in 2 dimensions: largest error"
    made = [claims.at_most("2.1", affine, identity_error(source), 1e-10)]
    gains = {kind: [measured_gain(kind, tilt, 4096, prompts, source) for tilt in TILTS] for kind in LAWS}
    if law != "gaussian":
        text = f"the limit of {law} tokens is linear: gain at a = 2"
        made.append(claims.near("2.1 linear", text, gains[law][2].value, 1.0, 0.05))
    for kind in ("gaussian", "rademacher", "uniform"):
        away = [mean.value - formulas.gain(kind, tilt) for tilt, mean in zip(TILTS, gains[kind], strict=True)]
        text = f"{kind}: measured at L = 4096 minus closed form, furthest"
        made.append(claims.near("2.1 gains", text, furthest(away, 0), 0.0, 0.03))
    short, long = (measured_gain("laplace", 2.0, length, prompts, source).value for length in (256, 16384))
    none = "Laplace tokens at a = 2 > √2 have no limit: gain at L = 16384 over that at 256"
    along, across = elliptical(2.0, 4096, prompts, source)
    scales = "gain along Γa of a mixture of two Gaussian scales, s² = 2"
    found_VV, predicted_VV = joint_covariance(2000, 4 * prompts, source)
    deviation_V = predicted_VV.diagonal().sqrt()
    worst = ((found_VV - predicted_VV) / (deviation_V[:, None] * deviation_V)).abs().max().item()
    joint = "keys and values: L·Cov minus its prediction, over the standard deviations, furthest entry"
    signs = gains["rademacher"][2].value
    made += [
        claims.near("2.1 rademacher", "rademacher tokens at a = 2: measured gain", signs, 0.482, 0.005),
        claims.at_least("2.1 laplace", none, long / short, 1.2),
        claims.near_relative("2.1 elliptical", scales, along, formulas.mixture_gain(SCALES, 2.0), 0.03),
        claims.at_most("2.1 elliptical", "its output across Γa, over that along it", across, 0.05),
        claims.at_most("2.2 joint", joint, worst, 0.1),
    ]
    rows = [
        (kind, tilt, formulas.gain(kind, tilt), mean.value, mean.error)
        for kind, means in gains.items()
        for tilt, mean in zip(TILTS, means, strict=True)
    ]
    grid = Grid("Gain T/a of unit-variance tokens, L = 4096", ("law", "a", "limit", "measured", "standard error"), rows)
    return Part(made, [grid], [_plot(gains)])


def _plot(gains: dict[str, list[Mean]]) -> Plot:
    fine = [0.1 * step for step in range(1, 25)]
    curves = []
    for kind in LAWS:
        curves.append(Curve(kind, TILTS, [mean.value for mean in gains[kind]]))
        exact = {tilt: gain for tilt in fine if (gain := formulas.gain(kind, tilt)) < 2.6}
        curves.append(Curve.of(kind, exact, dashed=True))
    caption = "What softmax over 4096 tokens returns, over a; dotted: the limit. Linear only where it is level."
    return Plot("gain", caption, "query a", "gain T/a", curves)
