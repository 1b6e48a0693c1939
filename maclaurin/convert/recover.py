"""Stage (b), recovery: the whole model learns to give the source's outputs again, or the task itself.

encoders    mean over layers of |h − h*|² / var h*  +  10·(1 − cos of the pooled vectors), and KL of logits if it has them
vision      the same
decoders    KL(source ‖ student) of the next token; with loss="task" the cross entropy of the text
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.lora import DOWN, UP, LowRank
from maclaurin.convert.plan import Plan
from maclaurin.convert.sources import Source
from maclaurin.convert.stage import Objective
from maclaurin.convert.teacher_student import mixing_layers, new_parameters
from maclaurin.convert.text import Batch

POOLED_WEIGHT = 10.0


def recover_objective(source: Source, teacher: PreTrainedModel, plan: Plan) -> Objective:
    if source.causal:
        return task if plan.loss == "task" else next_tokens(teacher)
    if plan.loss == "task":
        raise ValueError("loss 'task' needs a decoder: an encoder's task is not known here, distill its outputs")
    return hidden_states(teacher, source.pooling())


def hidden_states(teacher: PreTrainedModel, pooling: str) -> Objective:
    def objective(student: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = teacher(**batch, output_hidden_states=True)
        got = student(**batch, output_hidden_states=True)
        mask = batch.get("attention_mask")
        pairs = list(zip(got.hidden_states[1:], wanted.hidden_states[1:], strict=True))
        errors = [_relative_error(*pair, mask) for pair in pairs]
        loss = sum(errors[1:], start=errors[0]) / len(errors)
        angle = 1 - F.cosine_similarity(pooled(got, mask, pooling), pooled(wanted, mask, pooling), dim=-1)
        loss = loss + POOLED_WEIGHT * angle.mean()
        if "logits" in wanted:
            loss = loss + divergence(got.logits, wanted.logits)
        return loss

    return objective


def next_tokens(teacher: PreTrainedModel) -> Objective:
    def objective(student: nn.Module, batch: Batch) -> Tensor:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.no_grad():
            wanted = teacher(**inputs, use_cache=False).logits
        return divergence(student(**inputs, use_cache=False).logits, wanted)

    return objective


def task(student: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = student(**batch, use_cache=False).loss
    return loss


def pooled(outputs: Any, mask: Tensor | None, pooling: str) -> Tensor:
    """One vector a sequence, from the last hidden states (B,T,D)."""
    hidden: Tensor = outputs.hidden_states[-1] if outputs.get("hidden_states") else outputs.last_hidden_state
    if pooling == "class":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(1)
    real = mask[..., None].to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1)


def divergence(got: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted ‖ got) of logits, mean over everything but the last dimension."""
    got, wanted = (F.log_softmax(logits.float(), dim=-1).flatten(0, -2) for logits in (got, wanted))
    return F.kl_div(got, wanted, log_target=True, reduction="batchmean")


def _relative_error(got: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        got, wanted = got[mask.bool()], wanted[mask.bool()]
    got, wanted = got.flatten(0, -2), wanted.flatten(0, -2)
    return (got - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum()


def with_low_rank(student: nn.Module, rank: int) -> LowRank:
    """Factors for every linear layer around the students, whose own parameters are trained as they are."""
    layers = [
        module
        for layer in mixing_layers(student)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("student")
    ]
    return LowRank(layers, rank)


def recover_rates(teacher: nn.Module, student: nn.Module, plan: Plan) -> dict[str, float]:
    """With LoRA only what is new is trained: the factors, and the parameters of students."""
    factors = [name for name, _ in student.named_parameters() if name.endswith((DOWN, UP))]
    new = set(new_parameters(teacher, student)) - set(factors)
    old = factors if plan.lora else [name for name, _ in student.named_parameters() if name not in new]
    return dict.fromkeys(old, plan.recover_rate) | dict.fromkeys(sorted(new), plan.recover_rate * plan.map_rate)
