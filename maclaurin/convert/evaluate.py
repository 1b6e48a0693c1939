"""Stage (c), what was lost: source and converted model on the same held-out data.

encoders, vision    cosine of pooled vectors, mean and lowest tenth; Spearman correlation of the similarities of all pairs;
                    how often the likeliest class is the same, where there are classes
decoders            loss of either in nats a token; how often the likeliest next token is the same; KL
every layer         error of the attention's output; KL(softmax ‖ student) of the weights (`fidelity.py`)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from maclaurin.convert.fidelity import fidelity
from maclaurin.convert.recover import divergence, pooled
from maclaurin.convert.sources import Source
from maclaurin.convert.text import Batch

FIDELITY_BATCHES = 4  # of the held-out ones, for what is compared layer by layer
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
    rows, columns = torch.triu_indices(len(vectors), len(vectors), 1, device=vectors.device)
    return (vectors @ vectors.T)[rows, columns]


def spearman(a: Tensor, b: Tensor) -> float:
    """The correlation of ranks. Ties are as good as impossible among similarities of float64."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()
