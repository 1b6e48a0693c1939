"""Queries, keys and values of the softmax layers of a trained model, on text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from maclaurin.data import open_corpus
from maclaurin.lab import claims
from maclaurin.lab.experiments.long_prompt.linearisation import LinearisationReport, linearisation_report
from maclaurin.lab.experiments.long_prompt.part import Part
from maclaurin.lab.result import Curve, Plot
from maclaurin.mixers.attention import Attention
from maclaurin.models.folder import open_model

QUERIES = 64  # the last tokens of a row; all before them are the prompt
ROWS = 8


def checkpoint_reports(folder: str, text: str, context: int | None, eps: float, seed: int) -> dict[int, LinearisationReport]:
    """A report for each softmax layer. context: tokens of a prompt; by default what the model was made for."""
    model, tokenizer = open_model(folder)
    layers = {index: layer.mixer for index, layer in enumerate(model.model.layers) if _plain_softmax(layer.mixer)}
    if not layers:
        raise ValueError(f"model {folder!r} has no layer of plain softmax attention: the report is about softmax")
    length = context or model.config.max_position_embeddings - QUERIES
    ids_BT = _rows(tokenizer, text, length + QUERIES).to(model.device)
    reports = {}
    for index, (q, k, v) in _captured(model, layers, ids_BT):
        reports[index] = linearisation_report(q[:, length:], k[:, :length], v[:, :length], eps=eps, seed=seed)
    return reports


def _plain_softmax(mixer: Any) -> bool:
    """exp(q·k/√d) and nothing else decides the weights."""
    return (
        isinstance(mixer, Attention)
        and mixer.kernel is None
        and mixer.decay == "none"
        and mixer.window is None
        and mixer.feature_map == "identity"
    )


@torch.no_grad()
def _captured(
    model: Any, layers: dict[int, Attention], ids_BT: Tensor
) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
    """The inputs of the mixers by hooks; their own projections, with rotary positions, make q, k and v of them."""
    inputs: dict[int, Tensor] = {}

    def keep(index: int) -> Any:
        def hook(_: Any, args: tuple[Tensor, ...]) -> None:
            inputs[index] = args[0]

        return hook

    handles = [mixer.register_forward_pre_hook(keep(index)) for index, mixer in layers.items()]
    try:
        model.model(ids_BT, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for index, mixer in layers.items():
        p = mixer.project(inputs.pop(index), None, "auto", None)
        yield index, (p.q, p.k, p.v)


def _rows(tokenizer: Any, text: str, length: int) -> Tensor:
    """The first tokens of ROWS held-out documents that are long enough."""
    rows = []
    for document in open_corpus(text).documents("held-out"):
        ids = tokenizer(document, add_special_tokens=False)["input_ids"]
        if len(ids) >= length:
            rows.append(torch.tensor(ids[:length]))
        if len(rows) == ROWS:
            break
    if not rows:
        raise ValueError(f"text {text!r} has no held-out document of {length} tokens: choose a smaller context")
    return torch.stack(rows)


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
