"""Rotations that depend on the input: random features, hidden rotations of softmax, ripples, parity."""

from __future__ import annotations

import math

from maclaurin.common.arguments import at_least
from maclaurin.lab import claims
from maclaurin.lab.experiments.rotation.fourier import fourier_part, ripple_part
from maclaurin.lab.experiments.rotation.phases import as_rope, complex_form, group_claims, relative_phase
from maclaurin.lab.result import Part, Result

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
    draws = (200 if quick else 2000) if draws is None else draws
    learned = "not trained here: `maclaurin suite track` trains it, with lengths beyond those of the training"
    parts = [
        Part([complex_form(seed, tied=tied), *relative_phase(seed), *as_rope(seed, speed=speed)]),
        fourier_part(seed, draws),
        Part(group_claims(seed, length, turn=turn)),
        ripple_part(),
        Part([claims.not_applicable("learned", "learnt parity: selective rotary extrapolates", learned, PAPER)]),
    ]
    settings = {"length": length, "turn": turn, "speed": speed, "tied": tied, "draws": draws, "seed": seed}
    return Result.of("rotation", "Rotations that depend on the input", settings, parts, NOTES)
