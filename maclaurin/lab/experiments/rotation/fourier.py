"""Rotations as Fourier analysis: softmax as random rotations of the input, and a decay as the window of a truncated one.

exp(q·k) = exp((|q|²+|k|²)/2) E cos(ω·(q−k)) with ω ~ N(0, I). With D samples the numerator of softmax is a linear recurrence
with a diagonal, input-dependent rotation:

    Z_t = exp(iΩ(q_t − q_{t-1})) ⊙ Z_{t-1} + exp(|k_t|²/2) exp(iΩ(q_t − k_t)) v_tᵀ,   num_t = exp(|q_t|²/2) Re mean_D Z_t

The response of a plane to a wave that is off its frequency by δ, over T tokens, is |Σ_{r<T} γ^r e^{iδr}|. Without a decay it
depends on where it is cut off, and has side lobes 2π/T apart; a decay removes both and raises the level far from the peak.
"""

# T time, K channels, V value channels, D random directions, P draws of them

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, generator, normal, slope
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.lab.result import Curve, Grid, Part, Plot

FEATURES = (64, 256, 1024, 4096, 16384)
DECAYS = (1.0, 0.99, 0.97, 0.95)
LENGTH, SHORTEST = 256, 200
LOBES = (0.2, 2.0)  # δ that are looked at: away from the peak, and from half a turn, where all is flat
FAR = 0.31


def of_seed(seed: int, *shape: int) -> Tensor:
    return normal(*shape, generator=generator(seed))


def recurrence(seed: int, *, length: int = 64, dim: int = 4, features: int = 32, turn: float = 1.0) -> float:
    """The largest difference between the recurrence and the explicit sum over keys; turn scales its rotation: 1 is right."""
    q_TK, k_TK = of_seed(seed, length, dim) / 2, of_seed(seed + 1, length, dim) / 2
    v_TV, omega_DK = of_seed(seed + 2, length, 3), of_seed(seed + 3, features, dim)
    grow_q_T, grow_k_T = ((0.5 * x.square().sum(-1)).exp() for x in (q_TK, k_TK))
    kernel_TS = torch.cos((q_TK @ omega_DK.T)[:, None] - (k_TK @ omega_DK.T)[None]).mean(-1)
    explicit_TV = (grow_q_T[:, None] * kernel_TS * grow_k_T).tril() @ v_TV
    step_TD = turn * torch.diff(q_TK, dim=0, prepend=torch.zeros_like(q_TK[:1])) @ omega_DK.T
    write_TD = torch.polar(grow_k_T[:, None].expand(-1, features), (q_TK - k_TK) @ omega_DK.T)
    turn_TD = torch.polar(torch.ones_like(step_TD), step_TD)
    read_TD = torch.ones_like(turn_TD) * grow_q_T[:, None] / features
    found = System(turn_TD[:, None], write_TD[:, None], read_TD[:, None], v_TV[:, None]).run()[:, 0].real
    return distance(found, explicit_TV)


def kernel_errors(seed: int, features: Sequence[int], draws: int, dim: int = 8) -> tuple[list[float], list[float]]:
    """The root mean square error of the estimate of exp(q·k) for one pair over many draws, and what its variance says.

    Var = exp(|q|²+|k|²)·((1 + e^{-2δ²})/2 − e^{-δ²})/D with δ = |q − k|.
    """
    q_K, k_K = of_seed(seed, dim) / 2, of_seed(seed + 1, dim) / 2
    grow, apart = math.exp(0.5 * float(q_K @ q_K + k_K @ k_K)), float((q_K - k_K).square().sum())
    exact = math.exp(float(q_K @ k_K))
    source = generator(seed + 2)
    measured, predicted = [], []
    for count in features:
        # ω·(q−k) is one normal number of that length: no need to draw all channels
        error_P = grow * (math.sqrt(apart) * normal(draws, count, generator=source)).cos().mean(-1) - exact
        measured.append(error_P.square().mean().sqrt().item())
        predicted.append(grow * math.sqrt(((1 + math.exp(-2 * apart)) / 2 - math.exp(-apart)) / count))
    return measured, predicted


def attention_errors(seed: int, features: Sequence[int], length: int = 32, dim: int = 4) -> list[float]:
    """The mean total variation between rows of softmax attention and of attention by that many random features."""
    q_TK, k_TK = of_seed(seed, length, dim) / 2, of_seed(seed + 1, length, dim) / 2
    softmax_TS = (q_TK @ k_TK.T).softmax(-1)
    errors = []
    for index, count in enumerate(features):
        omega_DK = of_seed(seed + 10 + index, count, dim)
        # cos(a − b) by products: T x T x D numbers are never there
        q_TD, k_SD = q_TK @ omega_DK.T, k_TK @ omega_DK.T
        kernel_TS = (q_TD.cos() @ k_SD.cos().T + q_TD.sin() @ k_SD.sin().T) / count
        weight_TS = kernel_TS * (0.5 * k_TK.square().sum(-1)).exp()  # the query's factor cancels
        weight_TS = weight_TS / weight_TS.sum(-1, keepdim=True)
        errors.append(0.5 * (weight_TS - softmax_TS).abs().sum(-1).mean().item())
    return errors


def fourier_part(seed: int, draws: int) -> Part:
    kernel, attention = kernel_errors(seed, FEATURES, draws), attention_errors(seed, FEATURES)
    error, expected = max(zip(*kernel, strict=True), key=lambda pair: abs(math.log(pair[0] / pair[1])))
    hidden = "softmax's numerator as a recurrence with rotations = the sum over keys, largest error"
    halves = "error of exp(q·k) against D: slope of the logs (halves for 4 D)"
    variation = "total variation to softmax against D: slope of the logs"
    made = [
        claims.at_most("hidden", hidden, recurrence(seed), 1e-12),
        claims.near("RFF slope", halves, slope(FEATURES, kernel[0]), -0.5, 0.05),
        claims.near_relative("RFF variance", "the error furthest from what the variance says", error, expected, 0.15),
        claims.near("RFF attention", variation, slope(FEATURES, attention), -0.5, 0.1),
    ]
    columns = ("features", "exp(q·k), rms", "by its variance", "attention, total variation")
    grid = Grid("Error by number of random features", columns, list(zip(FEATURES, *kernel, attention, strict=True)))
    curves = [
        Curve("exp(q·k)", FEATURES, kernel[0]),
        Curve("by its variance", FEATURES, kernel[1], dashed=True),
        Curve("attention", FEATURES, attention),
    ]
    caption = "Softmax by random rotations: root mean square error of exp(q·k), and total variation of the attention."
    plot = Plot("features", caption, "random directions D", "error", curves, log_x=True, log_y=True)
    return Part(made, [grid], [plot])


def response(offset: Tensor, length: float | Tensor, decay: float) -> Tensor:
    """|Σ_{r<T} γ^r e^{iδr}| = |1 − γ^T e^{iδT}| / |1 − γ e^{iδ}|."""
    ratio = torch.polar(torch.full_like(offset, decay), offset)
    end = torch.polar(decay**length * torch.ones_like(offset), offset * length)
    return (1 - end).abs() / (1 - ratio).abs()


def spread(decay: float) -> float:
    """(largest − smallest) / mean of the response over the lengths 200 to 256; the mean of that over δ between LOBES."""
    lengths = torch.arange(SHORTEST, LENGTH + 1, dtype=torch.float64, device="cpu")
    offset = torch.linspace(*LOBES, 1001, dtype=torch.float64, device="cpu")[:, None].expand(-1, len(lengths))
    found = response(offset, lengths, decay)
    return ((found.amax(1) - found.amin(1)) / found.mean(1)).mean().item()


def lobes(decay: float) -> int:
    """Local maxima of the response between the ends of LOBES."""
    found = response(torch.linspace(*LOBES, 200_001, dtype=torch.float64, device="cpu"), LENGTH, decay)
    return int(((found[1:-1] > found[:-2]) & (found[1:-1] > found[2:])).sum())


def level(decay: float, far: float = FAR) -> float:
    """The largest response within a lobe of δ = `far`, in dB of the peak."""
    offset = torch.linspace(far - math.pi / LENGTH, far + math.pi / LENGTH, 2001, dtype=torch.float64, device="cpu")
    peak = LENGTH if decay == 1 else (1 - decay**LENGTH) / (1 - decay)
    return 20 * math.log10(response(offset, LENGTH, decay).max().item() / peak)


def ripple_part(decays: Sequence[float] = DECAYS) -> Part:
    """decays: what stands for γ = 1, .99, .97 and .95 in the claims."""
    none, weak, some, strong = decays
    expected = (LOBES[1] - LOBES[0]) * LENGTH / (2 * math.pi)
    over_lengths = "γ = 1: spread of the response over T = 200 to 256, mean over δ"
    made = [
        claims.near("truncation 1", over_lengths, spread(none), 1.52, 0.02),
        claims.near("truncation .99", "γ = .99: the same", spread(weak), 0.25, 0.005),
        claims.near("truncation .97", "γ = .97: the same", spread(some), 0.004, 0.0005),
        claims.near("lobes 1", "γ = 1: side lobes for δ from 0.2 to 2, one every 2π/T", lobes(none), expected, 1.0),
        claims.near("lobes .99", "γ = .99: the same", lobes(weak), expected, 1.0),
        claims.at_most("lobes .97", "γ = .97: the same", lobes(some), 0),
        claims.at_most("lobes .95", "γ = .95: the same", lobes(strong), 0),
        claims.near("level 1", "γ = 1: level at δ = 0.31, dB", level(none), -32.0, 1.0),
        claims.near("level .95", "γ = .95: the same, higher", level(strong), -16.0, 1.0),
    ]
    columns = ("decay γ", "spread over T = 200 to 256", "side lobes, δ 0.2 to 2")
    rows = [(decay, spread(decay), lobes(decay)) for decay in DECAYS]
    offset = torch.linspace(0.001, 0.3, 300, dtype=torch.float64, device="cpu")
    curves = []
    for decay in DECAYS[:3]:
        found = response(offset, LENGTH, decay)
        curves.append(Curve(f"γ = {decay:g}", offset.tolist(), (found / found[0]).tolist()))
    caption = "Response to a wave that is off a plane's frequency by δ, relative to its peak: a decay removes the ripple."
    plot = Plot("ripple", caption, "offset δ, radians per token", "response", curves, log_y=True)
    return Part(made, [Grid("A wave off the frequency by δ, T = 256", columns, rows)], [plot])
