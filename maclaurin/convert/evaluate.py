"""Stage (c), what was lost: source and converted model on the same held-out data.

encoders, vision    cosine of pooled vectors, mean and lowest tenth; Spearman correlation of the similarities of all pairs;
                    how often the likeliest class is the same, where there are classes
decoders            loss of either in nats a token; how often the likeliest next token is the same; KL
every layer         error of the attention's output; KL(softmax ‖ student) of the weights, where both are known
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.attention import watching
from maclaurin.convert.hosts import Shown, mixing_layers
from maclaurin.convert.recover import divergence, pooled
from maclaurin.convert.sources import Source
from maclaurin.convert.students import Softmax
from maclaurin.convert.text import Batch
from maclaurin.convert.transfer import layer_errors

FIDELITY_BATCHES = 4  # of the held-out ones, for what is compared layer by layer
SMALLEST_WEIGHT = 1e-9
FEWEST_ROWS = 3  # of which there are pairs to compare


@torch.no_grad()
def evaluate(source: Source, teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    batches = [{name: value.to(teacher.device) for name, value in batch.items()} for batch in batches]
    student.eval()
    figures = _tokens(teacher, student, batches) if source.causal else _vectors(teacher, student, batches, source.pooling())
    return figures | {"layers": fidelity(teacher, student, batches[:: max(1, len(batches) // FIDELITY_BATCHES)])}


def _vectors(teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch], pooling: str) -> dict[str, Any]:
    both: tuple[list[Tensor], list[Tensor]] = ([], [])
    same, classified = 0, 0
    for batch in batches:
        outputs = [model(**batch, output_hidden_states=True) for model in (teacher, student)]
        for vectors, output in zip(both, outputs, strict=True):
            vectors.append(F.normalize(pooled(output, batch.get("attention_mask"), pooling).double(), dim=-1))
        if "logits" in outputs[0]:
            agreed = outputs[0].logits.argmax(-1) == outputs[1].logits.argmax(-1)
            same, classified = same + int(agreed.sum()), classified + agreed.numel()
    wanted, got = (torch.cat(vectors) for vectors in both)
    if len(wanted) < FEWEST_ROWS:
        raise ValueError(f"agreement needs {FEWEST_ROWS} held-out sentences or images at least, got {len(wanted)}")
    cosines = (wanted * got).sum(-1)
    figures = {
        "rows": len(cosines),
        "cosine": cosines.mean().item(),
        "lowest_tenth": cosines.quantile(0.1).item(),
        "spearman": spearman(*(similarities(vectors) for vectors in (wanted, got))),
    }
    return figures | ({"same_class": same / classified} if classified else {})


def _tokens(teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    losses: tuple[list[float], list[float]] = ([], [])
    same, tokens, kl = 0, 0, []
    for batch in batches:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = [model(**inputs, use_cache=False).logits[:, :-1].float() for model in (teacher, student)]
        targets = batch["labels"][:, 1:]
        counted = targets != -100
        for values, some in zip(losses, logits, strict=True):
            values.append(F.cross_entropy(some[counted], targets[counted], reduction="sum").item())
        same += int((logits[0].argmax(-1) == logits[1].argmax(-1))[counted].sum())
        tokens += int(counted.sum())
        kl.append(divergence(logits[1], logits[0]).item())
    return {
        "rows": tokens,
        "teacher_loss": sum(losses[0]) / tokens,
        "loss": sum(losses[1]) / tokens,
        "kl": statistics.fmean(kl),
        "same_token": same / tokens,
    }


def similarities(vectors: Tensor) -> Tensor:
    """Of all pairs."""
    rows, columns = torch.triu_indices(len(vectors), len(vectors), 1)
    return (vectors @ vectors.T)[rows, columns]


def spearman(a: Tensor, b: Tensor) -> float:
    """The correlation of ranks. Ties are as good as impossible among similarities of float64."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()


def fidelity(teacher: PreTrainedModel, student: nn.Module, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """A row a layer: relative error of the output, and KL of the weights; each layer is shown the source's input."""
    shown = Shown.of(teacher)
    errors = torch.stack([torch.stack(layer_errors(shown, student, batch)) for batch in batches]).mean(0)
    rows: list[dict[str, Any]] = [{"layer": index, "error": error} for index, error in enumerate(errors.tolist())]
    layers = mixing_layers(student)
    if hasattr(layers[0], "student"):
        kls = torch.stack([_weight_divergence(shown, layers, batch) for batch in batches]).mean(0)
        for row, kl in zip(rows, kls.tolist(), strict=True):
            row["kl"] = kl
    return rows


def _weight_divergence(shown: Shown, layers: Sequence[nn.Module], batch: Batch) -> Tensor:
    """KL(softmax ‖ student) of every layer, over heads and real tokens. With an identity as values, outputs are weights."""
    found = []
    for call, layer in zip(shown.run(batch), layers, strict=True):
        with watching() as seen:
            call.again(layer)
        (view,) = seen
        B, T, G = view.k.shape[:3]
        identity = torch.eye(T, dtype=view.k.dtype, device=view.k.device)[None, :, None].expand(B, T, G, T)
        softmax = Softmax(view.student.shape)
        wanted, got = (
            student(view.q, view.k, identity, view.x, attention_mask=view.attention_mask)[0]
            for student in (softmax, view.student)
        )
        kl = (wanted * (wanted.clamp(min=SMALLEST_WEIGHT) / got.clamp(min=SMALLEST_WEIGHT)).log()).sum(-1)
        found.append((kl if view.attention_mask is None else kl[view.attention_mask.bool()]).mean())
    return torch.stack(found)
