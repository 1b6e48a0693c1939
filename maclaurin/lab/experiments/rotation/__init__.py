"""Rotations that depend on the input: random features, hidden rotations of softmax, ripples, parity."""

from __future__ import annotations

import math

import torch

from maclaurin.common.arguments import at_least
from maclaurin.lab import claims
from maclaurin.lab.experiments.rotation.fourier import (
    DECAYS,
    FEATURES,
    LENGTH,
    attention_errors,
    fourier_claims,
    kernel_errors,
    lobes,
    response,
    ripple_claims,
    spread,
)
from maclaurin.lab.experiments.rotation.phases import as_rope, complex_form, group_claims, relative_phase
from maclaurin.lab.result import Curve, Grid, Plot, Result

PAPER = "Selective RoPE, arXiv 2511.17388"
NOTES = (
    "Constructions show what a layer can represent, not what training finds.",
    "Side lobes are counted over a range of δ chosen here; the number expected is that of lobes 2π/T apart.",
)


def rotation(
    *,
    quick: bool = False,
    seed: int = 0,
    length: int = 1000,
    turn: float = math.pi,
    speed: float = 1.0,
    tied: bool = True,
    draws: int | None = None,
) -> Result:
    """Rotations that depend on the input: hidden in softmax, a window on frequencies, parity in one layer.

    length: of the words whose parity is tracked. turn: of a bit, π for parity. speed: of the increments, 1 for RoPE.
    tied: whether both channels of a pair decay alike in the comparison with the complex recurrence.
    draws: of random features.
    """
    at_least(2, "length", length)
    if not speed > 0:
        raise ValueError(f"speed must be positive, got {speed}")
    if draws is None:
        draws = 200 if quick else 2000
    kernel = kernel_errors(seed, FEATURES, draws)
    attention = attention_errors(seed, FEATURES)
    learned = "not trained here: `maclaurin suite track` trains it, with lengths beyond those of the training"
    return Result(
        "rotation",
        "Rotations that depend on the input",
        {"length": length, "turn": turn, "speed": speed, "tied": tied, "draws": draws, "seed": seed},
        [
            complex_form(seed, tied=tied),
            *relative_phase(seed),
            *as_rope(seed, speed=speed),
            *fourier_claims(seed, FEATURES, kernel, attention),
            *group_claims(seed, length, turn=turn),
            *ripple_claims(),
            claims.not_applicable("learned", "learnt parity: selective rotary extrapolates", learned, PAPER),
        ],
        [
            Grid(
                "Error by number of random features",
                ("features", "exp(q·k), rms", "by its variance", "attention, total variation"),
                list(zip(FEATURES, *kernel, attention, strict=True)),
            ),
            Grid(
                "A wave off the frequency by δ, T = 256",
                ("decay γ", "spread over T = 200 to 256", "side lobes, δ 0.2 to 2"),
                [(decay, spread(decay), lobes(decay)) for decay in DECAYS],
            ),
        ],
        [_error_plot(kernel, attention), _ripple_plot()],
        NOTES,
    )


def _error_plot(kernel: tuple[list[float], list[float]], attention: list[float]) -> Plot:
    curves = [
        Curve("exp(q·k)", FEATURES, kernel[0]),
        Curve("by its variance", FEATURES, kernel[1], dashed=True),
        Curve("attention", FEATURES, attention),
    ]
    caption = "Softmax by random rotations: root mean square error of exp(q·k), and total variation of the attention."
    return Plot("features", caption, "random directions D", "error", curves, log_x=True, log_y=True)


def _ripple_plot() -> Plot:
    offset = torch.linspace(0.001, 0.3, 300, dtype=torch.float64, device="cpu")
    curves = []
    for decay in DECAYS[:3]:
        found = response(offset, LENGTH, decay)
        curves.append(Curve(f"γ = {decay:g}", offset.tolist(), (found / found[0]).tolist()))
    caption = "Response to a wave that is off a plane's frequency by δ, relative to its peak: a decay removes the ripple."
    return Plot("ripple", caption, "offset δ, radians a token", "response", curves, log_y=True)
