"""Closed forms of softmax over a long prompt of Gaussian tokens, and their limit, measured.

    T_L(a) = Σ_i p_i v_i,   p = softmax(a·k_i) over L tokens;     T_∞(a) = E v + Σ_vk a    (their Lemma 2.1)

Keys and values are jointly Gaussian with covariances Σ_k, Σ_v, Σ_vk; the plain case is k = v = x with Γ. Everything that
follows the limit is a delta method. Its size is set by four numbers, floats or tensors of one shape:

    variance  s² = aᵀΣ_k a, of the logits        trace  tr Σ_v        shift2  |Σ_vk a|², the size of the signal squared

The limit is affine for Gaussian tokens, and something else for any other law. Boursier and Boyer, arXiv 2512.11784.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import LAWS, Mean, chunks, distance, draw, eye, furthest, normal, vector
from maclaurin.lab.result import Curve, Grid, Part, Plot

Number = TypeVar("Number", float, Tensor)

DELTA_VALID, ROOT_RATE, FROZEN = 0.25, 0.5, 2.0  # bounds of s²/ln L between the regimes
TILTS = (0.5, 1.0, 2.0)
SCALES = (0.4, math.sqrt(2 - 0.4**2))  # an elliptical law of variance 1 that is not Gaussian
NODES = 60


def affine_limit(mean_D: Tensor, gamma_DD: Tensor, tilt_D: Tensor, value_VD: Tensor) -> Tensor:
    """V m + V Γ a."""
    return value_VD @ (mean_D + gamma_DD @ tilt_D)


def exp(x: Number) -> Number:
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def softmax_error(variance: Number, trace: Number, shift2: Number) -> Number:
    """(2a) L·E|T_L − T_∞|²."""
    return exp(variance) * (trace + shift2)


def linear_error(variance: Number, trace: Number, shift2: Number) -> Number:
    """(2d) L·E|(1/L) Σ v_i (k_i·a) − T_∞|² of linear attention over tokens of mean zero: exact at every L."""
    return variance * trace + shift2


def difference_error(variance: Number, trace: Number, shift2: Number) -> Number:
    """(2e) L·E|softmax − linear attention|² over one and the same prompt."""
    return softmax_error(variance, trace, shift2) - linear_error(variance, trace, shift2)


def surrogate_error(variance: Number, trace: Number, shift2: Number) -> Number:
    """The same against v̄ + Cov(v, k) a with the moments of the prompt itself: its mean token no longer counts as error."""
    return difference_error(variance, trace, shift2) - trace


def gradient_error(
    variance: Number, trace: Number, shift2: Number, key_trace: Number, key_shift2: Number, cross2: Number, through: Number
) -> Number:
    """(2c) L·E‖∂T_L/∂a − Σ_vk‖²: key_shift2 = |Σ_k a|², cross2 = ‖Σ_vk‖², through = aᵀΣ_kv Σ_vk Σ_k a."""
    return exp(variance) * ((trace + shift2) * (key_trace + key_shift2) + cross2 + 2 * through)


def shrinkage(variance: Number, length: float) -> Number:
    """(2b) The bias of T_L, in units of Γa."""
    return -exp(variance) / length


def effective_tokens(variance: Number, length: float) -> Number:
    """(2b) 1/Σ p²: over how many tokens softmax averages."""
    return length * exp(-variance)


def prompt_length(error: Number, shift2: Number, eps: float) -> Number:
    """From this length on the root mean square of an error is at most eps of the signal |Σ_vk a|."""
    return error / (eps**2 * shift2)


def regime(ratio: float) -> str:
    """What s²/ln L says about the error at that length."""
    if ratio <= DELTA_VALID:
        return "delta method"
    if ratio <= ROOT_RATE:
        return "root L"
    return "slow" if ratio < FROZEN else "frozen"


def error_slope(ratio: float) -> float:
    """Of log rmse against log L at one query, where s²/ln L is `ratio`: −1/2 up to 2/3, then less, 0 when frozen.

    Large deviations, a heuristic: MSE = L^{−((1−β²)/2β)²} for β = s/√(2 ln L) above 1/√3.
    """
    return -0.5 * min(1.0, max(0.0, 1 / ratio - 0.5))


def query_exponent(spread: float) -> float:
    """κ: over random Gaussian queries the mean square error falls like L^−κ; spread λ is the top eigenvalue of the
    variance of the logits over queries and keys. Heuristic above 1/2.
    """
    return 1.0 if spread <= 0.5 else (math.sqrt(1 + 4 / spread) - 1) / 2


def query_error(dims: int, spread: float) -> float:
    """L·MSE over queries a ~ N(0, λI) and tokens N(0, I); infinite from λ = 1/2 on."""
    if spread >= 0.5:
        return math.inf
    left = 1 - 2 * spread
    return dims * left ** (-dims / 2) * (1 + spread / left)


def expected_maximum(length: int) -> float:
    """E max of L standard normals, by quadrature: a frozen softmax reads out no more than this along a."""
    x = torch.linspace(-9, 9, 20001, dtype=torch.float64, device="cpu")
    below = torch.special.log_ndtr(x)
    density = length * torch.exp((length - 1) * below - x**2 / 2) / math.sqrt(2 * math.pi)
    return torch.trapezoid(x * density, x).item()


def gain(law: str, tilt: float) -> float:
    """T_∞(a)/a of unit-variance tokens: the slope of the log moment generating function. 1 for all a only if Gaussian."""
    if law == "gaussian":
        return 1.0
    if law == "rademacher":
        return math.tanh(tilt) / tilt
    if law == "uniform":
        edge = math.sqrt(3)
        return (edge / math.tanh(edge * tilt) - 1 / tilt) / tilt
    return 1 / (1 - tilt**2 / 2) if tilt < math.sqrt(2) else math.inf  # laplace


def mixture_gain(scales: tuple[float, ...], variance: float) -> float:
    """Along Γa, for the elliptical law of r·N(0, I) with r uniform on `scales`, at |a|² = variance."""
    squares = [scale**2 for scale in scales]
    weights = [math.exp(square * variance / 2) for square in squares]
    return sum(square * weight for square, weight in zip(squares, weights, strict=True)) / sum(weights)


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
        worst = max(worst, distance(found, affine_limit(mean, root @ root.T, tilt, value)))
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
        away = [mean.value - gain(kind, tilt) for tilt, mean in zip(TILTS, gains[kind], strict=True)]
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
        claims.near_relative("2.1 elliptical", scales, along, mixture_gain(SCALES, 2.0), 0.03),
        claims.at_most("2.1 elliptical", "its output across Γa, over that along it", across, 0.05),
        claims.at_most("2.2 joint", joint, worst, 0.1),
    ]
    rows = [
        (kind, tilt, gain(kind, tilt), mean.value, mean.error)
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
        exact = {tilt: limit for tilt in fine if (limit := gain(kind, tilt)) < 2.6}
        curves.append(Curve.of(kind, exact, dashed=True))
    caption = "What softmax over 4096 tokens returns, over a; dotted: the limit. Linear only where it is level."
    return Plot("gain", caption, "query a", "gain T/a", curves)
