"""Queries, keys and values of the softmax layers of a trained model, on text."""

from __future__ import annotations

from maclaurin.common.arguments import at_least
from maclaurin.lab import claims
from maclaurin.lab.checkpoints import checkpoint
from maclaurin.lab.experiments.long_prompt.linearisation import SHORTEST_PROMPT, LinearisationReport, linearisation_report
from maclaurin.lab.experiments.long_prompt.part import Part
from maclaurin.lab.result import Curve, Plot
from maclaurin.lab.watched import Layer
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.projected import ProjectedMixer

QUERIES = 64  # the last tokens of a row; all before them are the prompt
ROWS = 8


def checkpoint_reports(
    folder: str, text: str | None, context: int | None, eps: float, seed: int
) -> dict[int, LinearisationReport]:
    """A report for each softmax layer. context: tokens of a prompt; by default what the model was made for."""
    watched = checkpoint(folder, text, tokens=None if context is None else context + QUERIES, texts=ROWS)
    length = watched.tokens - QUERIES
    at_least(SHORTEST_PROMPT, "context", length)
    layers = [layer for layer in watched.layers() if _plain_softmax(layer.mixer)]
    if not layers:
        raise ValueError(f"model {folder!r} has no layer of plain softmax attention: the report is about softmax")
    return {layer.index: report(layer, length, eps, seed) for layer in layers}


def report(layer: Layer, length: int, eps: float, seed: int) -> LinearisationReport:
    """Of the queries behind the first `length` tokens, over these."""
    q, k, v = layer.p.q[:, length:], layer.p.k[:, :length], layer.p.v[:, :length]
    return linearisation_report(q, k, v, eps=eps, seed=seed)


def _plain_softmax(mixer: ProjectedMixer) -> bool:
    """exp(q·k/√d) and nothing else decides the weights."""
    return (
        isinstance(mixer, Attention)
        and mixer.kernel is None
        and mixer.decay == "none"
        and mixer.window is None
        and mixer.feature_map == "identity"
    )


def _below(name: str, lengths: list[float], most: float = 1e12) -> Curve:
    """Heads that would need more tokens than anybody has are left out."""
    shown = [(index, length) for index, length in enumerate(lengths) if length < most]
    return Curve(name, [index for index, _ in shown], [length for _, length in shown])


def part(reports: dict[int, LinearisationReport]) -> Part:
    heads = [(f"{layer}.{head.head}", head) for layer, report in reports.items() for head in report.heads]
    any_report = next(iter(reports.values()))
    together = LinearisationReport(any_report.length, any_report.eps, [head for _, head in heads], {})
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
    index = list(range(count))
    curves = [
        _below("output", [head.length_linear for _, head in heads]),
        _below("gradient", [head.length_gradient for _, head in heads]),
        Curve("these prompts", index, [float(together.length)] * count, dashed=True),
    ]
    caption = f"Tokens from which each head would be linear attention to {100 * eps:g} % if its tokens were Gaussian."
    parts = [
        Curve("measured", index, [head.error for _, head in heads]),
        Curve("by chance, from halves of the prompts", index, [head.resampled for _, head in heads]),
        Curve("rest", index, [head.rest for _, head in heads]),
    ]
    return Part(
        made,
        together.grids("Heads of the model", [name for name, _ in heads]),
        [
            Plot("heads-length", caption, "head, layer by layer", "prompt length", curves, log_y=True),
            Plot(
                "heads-error",
                "Relative error of the affine surrogate in each head.",
                "head, layer by layer",
                "relative error",
                parts,
            ),
        ],
    )
