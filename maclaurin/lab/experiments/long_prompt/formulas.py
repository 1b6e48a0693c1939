"""Closed forms of softmax over a long prompt of Gaussian tokens. Statements: Boursier and Boyer, arXiv 2512.11784.

    T_L(a) = Σ_i p_i v_i,   p = softmax(a·k_i) over L tokens;     T_∞(a) = E v + Σ_vk a    (their Lemma 2.1)

Keys and values are jointly Gaussian with covariances Σ_k, Σ_v, Σ_vk; the plain case is k = v = x with Γ. Everything that
follows the limit is a delta method. Its size is set by four numbers, floats or tensors of one shape:

    variance  s² = aᵀΣ_k a, of the logits        trace  tr Σ_v        shift2  |Σ_vk a|², the size of the signal squared
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

DELTA_VALID, ROOT_RATE, FROZEN = 0.25, 0.5, 2.0  # bounds of s²/ln L between the regimes


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
