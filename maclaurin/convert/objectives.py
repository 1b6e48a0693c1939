"""What the stages of a conversion train, and towards what.

Stage (a), attention transfer: every student learns the output of the source's attention for the same input. The source runs
unchanged; each layer's student gets the inputs of that layer's attention, and only the parameters that the source does not
have are trained. As in LoLCATs and Hedgehog, but the error of a layer is divided by the variance of its target, so that no
layer dominates.

Stage (b), recovery: the whole model learns the source's outputs, or the task itself.

encoders    mean over layers of |h − h*|² / var h*  +  10·(1 − cos of the pooled vectors), and KL of logits if it has them
vision      the same
decoders    KL(source ‖ student) of the next token; with loss="task" the cross entropy of the text

With low-rank updates (Hu et al.: LoRA, arXiv 2106.09685) a linear layer becomes W + U·D, D (rank x in) random and U
(out x rank) zero at first; merged at the end. The factors are parameters of the layer itself, so that the names of all other
weights do not change.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from maclaurin.convert.data import Batch
from maclaurin.convert.sources import Source
from maclaurin.convert.stage import Objective
from maclaurin.convert.teacher_student import TracedTeacher, mixing_layers, new_parameters
from maclaurin.ops.transforms import recomputed
from maclaurin.training.conversion import Plan

# the query and key projections, by the names of the model families
PROJECTIONS = re.compile(r"\.(query|key|q_lin|k_lin|q_proj|k_proj|qkv_proj)\.(weight|bias)$")
POOLED_WEIGHT = 10.0
DOWN, UP = "lora_down", "lora_up"
SLICE = 256  # tokens whose logits are in memory at once


def transfer_objective(teacher: PreTrainedModel) -> Objective:
    traced = TracedTeacher.of(teacher)

    def objective(student: nn.Module, batch: Batch) -> Tensor:
        errors = layer_errors(traced, student, batch)
        return torch.stack(errors).mean()

    return objective


def layer_errors(traced: TracedTeacher, student: nn.Module, batch: Batch) -> list[Tensor]:
    """The relative error of each layer, 0 where nothing was changed."""
    mask = batch.get("attention_mask")
    layers = zip(traced.run(batch), mixing_layers(student), strict=True)
    return [relative_error(call.again(layer), call.output, mask) for call, layer in layers]


def relative_error(got: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """Σ|y − y*|² / Σ|y* − mean y*|² over the real tokens."""
    if mask is not None:
        got, wanted = got[mask.bool()], wanted[mask.bool()]
    got, wanted = got.flatten(0, -2), wanted.flatten(0, -2)
    return (got - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum()


def transfer_rates(teacher: nn.Module, student: nn.Module, plan: Plan) -> dict[str, float]:
    rates = dict.fromkeys(new_parameters(teacher, student), plan.transfer_rate)
    if plan.train_projections:
        # weights of the source get a smaller learning rate, here as in recovery
        slower = plan.transfer_rate / plan.map_rate
        rates |= {name: slower for name, _ in student.named_parameters() if PROJECTIONS.search(f".{name}")}
    if not rates:
        raise ValueError("these students have nothing to train: transfer_steps must be 0")
    return rates


def recover_objective(source: Source, teacher: PreTrainedModel, plan: Plan) -> Objective:
    if source.causal:
        objective = task if plan.loss == "task" else next_tokens(teacher)
        return in_bf16(objective, teacher.device.type) if plan.precision == "bf16" else objective
    if plan.loss == "task":
        raise ValueError("loss 'task' needs a decoder: the task of an encoder is not known, use 'distill'")
    return hidden_states(teacher, source.pooling())


def hidden_states(teacher: PreTrainedModel, pooling: str) -> Objective:
    def objective(student: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = teacher(**batch, output_hidden_states=True)
        got = student(**batch, output_hidden_states=True)
        mask = batch.get("attention_mask")
        pairs = list(zip(got.hidden_states[1:], wanted.hidden_states[1:], strict=True))
        errors = [relative_error(*pair, mask) for pair in pairs]
        loss = sum(errors[1:], start=errors[0]) / len(errors)
        angle = 1 - F.cosine_similarity(pooled(got, mask, pooling), pooled(wanted, mask, pooling), dim=-1)
        loss = loss + POOLED_WEIGHT * angle.mean()
        if "logits" in wanted:
            loss = loss + divergence(got.logits, wanted.logits)
        return loss

    return objective


def next_tokens(teacher: PreTrainedModel) -> Objective:
    """Logits are computed slice by slice, and again in the backward: all of them would take more memory than the models."""

    def objective(student: Any, batch: Batch) -> Tensor:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.no_grad():
            wanted = before_head(teacher, inputs)
        got = before_head(student, inputs)

        def summed(got: Tensor, wanted: Tensor) -> Tensor:
            return summed_divergence(student.get_output_embeddings()(got), teacher.get_output_embeddings()(wanted))

        slices = zip(got.split(SLICE, dim=1), wanted.split(SLICE, dim=1), strict=True)
        sums = [recomputed(summed, *some) for some in slices]
        return sum(sums[1:], start=sums[0]) / got[..., 0].numel()

    return objective


def before_head(model: Any, inputs: Batch) -> Tensor:
    """What the head of a decoder makes logits of."""
    hidden: Tensor = model.base_model(**inputs, use_cache=False).last_hidden_state
    return hidden


def in_bf16(objective: Objective, device: str) -> Objective:
    """With products of bfloat16; weights, sums and what students do remain float32."""

    def rounded(student: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return objective(student, batch)

    return rounded


def task(student: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = student(**batch, use_cache=False).loss
    return loss


def pooled(outputs: Any, mask: Tensor | None, pooling: str) -> Tensor:
    """One vector per sequence, from the last hidden states (B,T,D)."""
    hidden: Tensor = outputs.hidden_states[-1] if outputs.get("hidden_states") else outputs.last_hidden_state
    if pooling == "class":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(1)
    real = mask[..., None].to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1)


def divergence(got: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted ‖ got) of logits, mean over everything but the last dimension."""
    return summed_divergence(got, wanted) / got[..., 0].numel()


def summed_divergence(got: Tensor, wanted: Tensor) -> Tensor:
    got, wanted = (F.log_softmax(logits.float(), dim=-1) for logits in (got, wanted))
    return F.kl_div(got, wanted, log_target=True, reduction="sum")


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
    """With LoRA only new parameters are trained: the factors, and those of students."""
    factors = [name for name, _ in student.named_parameters() if name.endswith((DOWN, UP))]
    new = set(new_parameters(teacher, student)) - set(factors)
    old = factors if plan.lora else [name for name, _ in student.named_parameters() if name not in new]
    return dict.fromkeys(old, plan.recover_rate) | dict.fromkeys(sorted(new), plan.recover_rate * plan.map_rate)


class LowRank:
    """Adds factors to the given linear layers until `merge`."""

    def __init__(self, layers: list[nn.Linear], rank: int) -> None:
        self.layers = layers
        self.handles: list[RemovableHandle] = []
        for layer in layers:
            down = torch.randn(rank, layer.in_features, dtype=torch.float32, device=layer.weight.device)
            layer.register_parameter(DOWN, nn.Parameter((down * layer.in_features**-0.5).to(layer.weight.dtype)))
            layer.register_parameter(UP, nn.Parameter(layer.weight.new_zeros(layer.out_features, rank)))
            self.handles.append(layer.register_forward_hook(_add))

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the update to the weights and removes the factors."""
        for layer, handle in zip(self.layers, self.handles, strict=True):
            layer.weight += layer.get_parameter(UP) @ layer.get_parameter(DOWN)
            handle.remove()
            delattr(layer, DOWN)
            delattr(layer, UP)


def _add(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + F.linear(F.linear(args[0], layer.get_parameter(DOWN)), layer.get_parameter(UP))
