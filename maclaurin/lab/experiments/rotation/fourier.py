"""Softmax hides random rotations: exp(q·k) = exp((|q|²+|k|²)/2) E cos(ω·(q−k)) with ω ~ N(0, I).

With D samples the numerator of softmax is a linear recurrence with a diagonal, input-dependent rotation:

    Z_t = exp(iΩ(q_t − q_{t-1})) ⊙ Z_{t-1} + exp(|k_t|²/2) exp(iΩ(q_t − k_t)) v_tᵀ,   num_t = exp(|q_t|²/2) Re mean_D Z_t
"""

# T time, K channels, V value channels, D random directions, P draws of them

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim

FEATURES = (64, 256, 1024, 4096, 16384)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu")


def recurrence(seed: int, *, length: int = 64, dim: int = 4, features: int = 32, turn: float = 1.0) -> float:
    """The largest difference between the recurrence and the explicit sum over keys; turn scales its rotation: 1 is right."""
    q_TK, k_TK, v_TV, omega_DK = (
        normal(seed, length, dim) / 2,
        normal(seed + 1, length, dim) / 2,
        normal(seed + 2, length, 3),
        normal(seed + 3, features, dim),
    )
    square = (0.5 * x.square().sum(-1) for x in (q_TK, k_TK))
    grow_q_T, grow_k_T = (x.exp() for x in square)
    kernel_TS = torch.cos((q_TK @ omega_DK.T)[:, None] - (k_TK @ omega_DK.T)[None]).mean(-1)
    explicit_TV = (grow_q_T[:, None] * kernel_TS * grow_k_T).tril() @ v_TV
    step_TD = turn * torch.diff(q_TK, dim=0, prepend=torch.zeros(1, dim, dtype=torch.float64, device="cpu")) @ omega_DK.T
    write_TD = torch.polar(grow_k_T[:, None].expand(-1, features), (q_TK - k_TK) @ omega_DK.T)
    memory_DV = torch.zeros(features, 3, dtype=torch.complex128, device="cpu")
    numerators = []
    for t in range(length):
        memory_DV = torch.polar(torch.ones(features, dtype=torch.float64, device="cpu"), step_TD[t])[:, None] * memory_DV
        memory_DV = memory_DV + write_TD[t][:, None] * v_TV[t]
        numerators.append(grow_q_T[t] * memory_DV.mean(0).real)
    return (torch.stack(numerators) - explicit_TV).abs().max().item()


def kernel_errors(seed: int, features: Sequence[int], draws: int, dim: int = 8) -> tuple[list[float], list[float]]:
    """The root mean square error of the estimate of exp(q·k) for one pair over many draws, and what its variance says.

    Var = exp(|q|²+|k|²)·((1 + e^{-2δ²})/2 − e^{-δ²})/D with δ = |q − k|.
    """
    q_K, k_K = normal(seed, dim) / 2, normal(seed + 1, dim) / 2
    grow, apart = math.exp(0.5 * float(q_K @ q_K + k_K @ k_K)), float((q_K - k_K).square().sum())
    exact = math.exp(float(q_K @ k_K))
    generator = torch.Generator().manual_seed(seed + 2)
    measured, predicted = [], []
    for count in features:
        # ω·(q−k) is one normal number of that length: no need to draw all channels
        angle_PD = math.sqrt(apart) * torch.randn(draws, count, generator=generator, dtype=torch.float64, device="cpu")
        error_P = grow * angle_PD.cos().mean(-1) - exact
        measured.append(error_P.square().mean().sqrt().item())
        predicted.append(grow * math.sqrt(((1 + math.exp(-2 * apart)) / 2 - math.exp(-apart)) / count))
    return measured, predicted


def attention_errors(seed: int, features: Sequence[int], length: int = 32, dim: int = 4) -> list[float]:
    """The mean total variation between rows of softmax attention and of attention by that many random features."""
    q_TK, k_TK = normal(seed, length, dim) / 2, normal(seed + 1, length, dim) / 2
    softmax_TS = (q_TK @ k_TK.T).softmax(-1)
    errors = []
    for index, count in enumerate(features):
        omega_DK = normal(seed + 10 + index, count, dim)
        # cos(a − b) by products: T x T x D numbers are never there
        q_TD, k_SD = q_TK @ omega_DK.T, k_TK @ omega_DK.T
        kernel_TS = (q_TD.cos() @ k_SD.cos().T + q_TD.sin() @ k_SD.sin().T) / count
        weight_TS = kernel_TS * (0.5 * k_TK.square().sum(-1)).exp()  # the query's factor cancels
        weight_TS = weight_TS / weight_TS.sum(-1, keepdim=True)
        errors.append(0.5 * (weight_TS - softmax_TS).abs().sum(-1).mean().item())
    return errors


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of log y against log x, by least squares."""
    log_x, log_y = (torch.tensor(values, dtype=torch.float64, device="cpu").log() for values in (x, y))
    centred = log_x - log_x.mean()
    return float((centred @ log_y) / (centred @ centred))


def fourier_claims(
    seed: int, features: Sequence[int], kernel: tuple[list[float], list[float]], attention: Sequence[float]
) -> list[Claim]:
    measured, predicted = kernel
    worst = max(measured, key=lambda error: abs(math.log(error / predicted[measured.index(error)])))
    return [
        claims.at_most(
            "hidden",
            "softmax's numerator as a recurrence with rotations = the sum over keys, largest error",
            recurrence(seed),
            1e-12,
        ),
        claims.near(
            "RFF slope",
            "error of exp(q·k) against D: slope of the logs (halves for 4 D)",
            slope(features, measured),
            -0.5,
            0.05,
        ),
        claims.near_relative(
            "RFF variance", "the error furthest from what the variance says", worst, predicted[measured.index(worst)], 0.15
        ),
        claims.near(
            "RFF attention", "total variation to softmax against D: slope of the logs", slope(features, attention), -0.5, 0.1
        ),
    ]
