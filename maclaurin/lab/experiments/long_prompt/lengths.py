"""From which prompt length on softmax is linear attention to a relative accuracy eps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from maclaurin.lab import claims
from maclaurin.lab.experiments.long_prompt import formulas
from maclaurin.lab.experiments.long_prompt.draws import chunks, draw
from maclaurin.lab.experiments.long_prompt.finite import furthest
from maclaurin.lab.experiments.long_prompt.part import Part
from maclaurin.lab.result import Curve, Grid, Plot

# (d, s²): L at eps = .1 and .3
REFERENCE = {
    (16, 0.25): (6647, 739),
    (16, 1.0): (2922, 325),
    (16, 2.0): (4951, 551),
    (16, 4.0): (25600, 2845),
    (64, 0.25): (26500, 2945),
    (64, 1.0): (11169, 1241),
    (64, 2.0): (17884, 1988),
    (64, 4.0): (86317, 9591),
    (64, 9.0): (6.57e6, 7.3e5),
    (128, 1.0): (22166, 2463),
    (128, 4.0): (167274, 18586),
}
# (d, s², eps): relative rms that the reference run found at L_eps
FOUND = {(16, 0.25, 0.2): 0.200, (16, 1.0, 0.2): 0.1997, (16, 2.0, 0.2): 0.194, (16, 1.0, 0.1): 0.0999}
FURTHER = ((64, 0.25, 0.2), (64, 1.0, 0.2), (128, 1.0, 0.2))


def isotropic_length(dims: int, variance: float, eps: float) -> float:
    """L_eps of softmax against linear attention over the same prompt, Γ = I."""
    return formulas.prompt_length(formulas.difference_error(variance, float(dims), variance), variance, eps)


def relative_rms(length: int, variance: float, dims: int, prompts: int, source: torch.Generator) -> float:
    """|softmax − linear attention| over |Γa|, root mean square over prompts of N(0, I) tokens.

    Only the channel along the query is drawn: given the weights of the tokens, the others are Gaussian and their mean
    square is known.
    """
    size, total = math.sqrt(variance), 0.0
    for count in chunks(prompts, length):
        x_NL = draw("gaussian", (count, length), source)
        weight_NL = torch.softmax(size * x_NL, -1) - size * x_NL / length
        along_N = (weight_NL * x_NL).sum(-1)
        total += (along_N.square() + (dims - 1) * weight_NL.square().sum(-1)).sum().item()
    return math.sqrt(total / prompts / variance)


def part(prompts: int, source: torch.Generator, cases: Sequence[tuple[int, float, float]] = (*FOUND, *FURTHER)) -> Part:
    pairs = [
        (isotropic_length(*key, eps), known)
        for key, values in REFERENCE.items()
        for eps, known in zip((0.1, 0.3), values, strict=True)
    ]
    worst = furthest([value / known for value, known in pairs])
    made = [claims.near("2.2 lengths", "L_eps over the reference table, furthest of 22 entries", worst, 1.0, 0.003)]
    rows: list[tuple[float | None, ...]] = []
    for dims, variance, eps in cases:
        length = round(isotropic_length(dims, variance, eps))
        # rare tokens carry the error where logits are large
        found = relative_rms(length, variance, dims, prompts if variance <= 1 else 8 * prompts, source)
        rows.append((dims, variance, eps, length, found, FOUND.get((dims, variance, eps))))
        text = f"relative rms at L_eps = {length}, d = {dims}, s² = {variance:g}"
        if variance <= 1:
            made.append(claims.near_relative("2.2 at L_eps", text, found, eps, 0.05))
        else:
            made.append(claims.near("2.2 at L_eps", text, found, FOUND[dims, variance, eps], 0.01))
    columns = ("d", "s²", "eps", "L_eps", "relative rms there", "reference")
    fine = [0.1 * 1.2**step for step in range(25)]
    curves = [Curve(f"d = {dims}", fine, [isotropic_length(dims, s2, 0.1) for s2 in fine]) for dims in (16, 64, 128)]
    caption = "Tokens from which softmax is linear attention to 10 %, Γ = I (2e): small logits are not the easiest."
    plot = Plot("length", caption, "variance s² of the logits", "prompt length", curves, log_x=True, log_y=True)
    return Part(made, [Grid("Is softmax linear at the predicted length?", columns, rows)], [plot])
