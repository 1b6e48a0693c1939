"""Stage (a), attention transfer: every student learns to give what the source's attention gives for the same input.

The source runs as it is; each layer's student is shown what that layer's attention was called with, and only the parameters
that the source did not have are trained. As LoLCATs and Hedgehog do it, but the error of a layer is divided by the variance
of what it should give, so that no layer drowns the others.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.plan import Plan
from maclaurin.convert.stage import Objective
from maclaurin.convert.teacher_student import Shown, mixing_layers, new_parameters
from maclaurin.convert.text import Batch

# the projections to queries and keys, by the names that families give them
PROJECTIONS = re.compile(r"\.(query|key|q_lin|k_lin|q_proj|k_proj|qkv_proj)\.(weight|bias)$")


def transfer_objective(teacher: PreTrainedModel) -> Objective:
    shown = Shown.of(teacher)

    def objective(student: nn.Module, batch: Batch) -> Tensor:
        errors = layer_errors(shown, student, batch)
        return torch.stack(errors).mean()

    return objective


def layer_errors(shown: Shown, student: nn.Module, batch: Batch) -> list[Tensor]:
    """Of each layer: Σ|y − y*|² / Σ|y* − mean y*|² over the real tokens, 0 where nothing was changed."""
    mask = batch.get("attention_mask")
    errors = []
    for call, layer in zip(shown.run(batch), mixing_layers(student), strict=True):
        got, wanted = call.again(layer), call.output
        if mask is not None:
            got, wanted = got[mask.bool()], wanted[mask.bool()]
        got, wanted = got.flatten(0, -2), wanted.flatten(0, -2)
        spread = (wanted - wanted.mean(0)).square().sum()
        errors.append((got - wanted).square().sum() / spread)
    return errors


def transfer_rates(teacher: nn.Module, student: nn.Module, plan: Plan) -> dict[str, float]:
    rates = dict.fromkeys(new_parameters(teacher, student), plan.transfer_rate)
    if plan.train_projections:
        # weights that have been trained for long move in smaller steps, here as in recovery
        slower = plan.transfer_rate / plan.map_rate
        rates |= {name: slower for name, _ in student.named_parameters() if PROJECTIONS.search(f".{name}")}
    if not rates:
        raise ValueError("these students have nothing to train: transfer_steps must be 0")
    return rates
