"""The linearisation report on activations whose answer is known, and on the softmax layers of a trained model."""

# B prompts, Q queries, L tokens, D channels; one head

from __future__ import annotations

import math

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import draw
from maclaurin.lab.experiments.long_prompt import limits
from maclaurin.lab.experiments.long_prompt.finite import isotropic_length
from maclaurin.lab.experiments.long_prompt.linearisation import SHORTEST_PROMPT, LinearisationReport, linearisation_report
from maclaurin.lab.result import Curve, Part, Plot
from maclaurin.lab.traces import Layer, checkpoint
from maclaurin.mixers.mechanisms import Softmax

DIMS = 16
QUERIES = 64  # the last tokens of a text; all before them are the prompt
TEXTS = 8
MOST_TOKENS = 1e12  # heads that would need more tokens than anybody has are left out of a figure


def activations(
    law: str, variance: float, length: int, prompts: int, source: torch.Generator, queries: int = 64
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v with v = k, logits of variance s² in every direction, for scale 1; Gaussian but for two laws:

    "two clusters": ±1 along every query, with a tenth of noise. "heavy tails": Laplace channels, each query reads one.
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


def known_part(source: torch.Generator, eps: float, length: int = 4096) -> Part:
    sizes = {"gaussian": 1.0, "two clusters": 4.0, "heavy tails": 1.0, "frozen": 20.0}
    found = {
        law: linearisation_report(*activations(law, variance, length, 4, source), eps=eps, scale=1.0).heads[0]
        for law, variance in sizes.items()
    }
    good = found["gaussian"]
    expected = isotropic_length(DIMS, sizes["gaussian"], eps)
    stated = max(round(good.length_surrogate), 128)
    there = linearisation_report(*activations("gaussian", 1.0, stated, 64, source, 16), eps=eps, scale=1.0).heads[0]
    ratio = limits.gradient_error(1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 1.0) / limits.softmax_error(1.0, 4.0, 1.0)
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
    others = {law: found[law].verdict for law in ("two clusters", "heavy tails", "frozen")}
    made += [claims.true("B3", f"not linear: {law}", said, said.startswith("no:"), "no") for law, said in others.items()]
    together = LinearisationReport(length, eps, list(found.values()))
    names = [f"{law}, s² = {variance:g}" for law, variance in sizes.items()]
    return Part(made, together.grids("Activations, d = 16", names))


def checkpoint_reports(
    folder: str, text: str | None, context: int | None, eps: float, seed: int
) -> dict[int, LinearisationReport]:
    """A report for each softmax layer. context: tokens of a prompt; by default what the model was made for."""
    traced = checkpoint(folder, text, tokens=None if context is None else context + QUERIES, texts=TEXTS)
    length = traced.tokens - QUERIES
    at_least(SHORTEST_PROMPT, "context", length)
    layers = [layer for layer in traced.layers() if _plain_softmax(layer)]
    if not layers:
        raise ValueError(f"model {folder!r} has no layer of plain softmax attention: the report is about softmax")
    reports = {}
    for layer in layers:  # of the queries behind the first `length` tokens, over these
        q, k, v = layer.q[:, length:], layer.k[:, :length], layer.v[:, :length]
        reports[layer.index] = linearisation_report(q, k, v, eps=eps, seed=seed)
    return reports


def _plain_softmax(layer: Layer) -> bool:
    """exp(q·k/√d) and nothing else decides the weights."""
    return isinstance(layer.mechanism, Softmax) and layer.log_decay is None and vars(layer.mechanism) == vars(Softmax())


def checkpoint_part(reports: dict[int, LinearisationReport]) -> Part:
    heads = [(f"{layer}.{head.head}", head) for layer, report in reports.items() for head in report.heads]
    any_report = next(iter(reports.values()))
    together = LinearisationReport(any_report.length, any_report.eps, [head for _, head in heads])
    eps, count = together.eps, len(heads)
    linear = [name for name, head in heads if head.linear]
    told = [head for _, head in heads if head.regime in ("delta method", "root L")]
    gaussian = sum(head.rest <= max(eps, head.resampled) for head in told)
    tokens = sum(0.8 <= head.effective / head.effective_predicted <= 1.25 for _, head in heads)
    shown = f"{len(linear)} of {count}: {' '.join(linear)}" if linear else f"none of {count}"
    rest = "no head has a rest beyond sampling and ε, where L is long enough to tell"
    made = [
        claims.true("B3", f"every head is linear in the limit to ε = {eps:g} on this text", shown, len(linear) == count),
        claims.true("B3 rest", rest, f"{gaussian} of {len(told)}", gaussian == len(told))
        if told
        else claims.not_applicable("B3 rest", rest, "s² is above ln(L)/2 in all of them"),
        claims.true("B2", "1/Σp² is L/e^{s²} to a quarter in every head", f"{tokens} of {count}", tokens == count),
    ]
    output, gradient = (
        {index: length for index, (_, head) in enumerate(heads) if (length := getattr(head, kind)) < MOST_TOKENS}
        for kind in ("length_linear", "length_gradient")
    )
    index = list(range(count))
    these = Curve("these prompts", index, [float(together.length)] * count, dashed=True)
    curves = [Curve.of("output", output), Curve.of("gradient", gradient), these]
    caption = f"Tokens from which each head would be linear attention to {100 * eps:g} % if its tokens were Gaussian."
    surrogate = "Relative error of the affine surrogate in each head."
    parts = [
        Curve("measured", index, [head.error for _, head in heads]),
        Curve("by chance, from halves of the prompts", index, [head.resampled for _, head in heads]),
        Curve("rest", index, [head.rest for _, head in heads]),
    ]
    plots = [
        Plot("heads-length", caption, "head, layer by layer", "prompt length", curves, log_y=True),
        Plot("heads-error", surrogate, "head, layer by layer", "relative error", parts),
    ]
    return Part(made, together.grids("Heads of the model", [name for name, _ in heads]), plots)
