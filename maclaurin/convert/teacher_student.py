"""Teacher and student: the source as it is, a converted copy, and the layers of both that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.maclaurin_student import convert_own
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.models.linearised.attention import HANDED_OVER
from maclaurin.models.linearised.classes import attention_modules, linearise
from maclaurin.models.linearised.students import SOFTMAX
from maclaurin.training.conversion import Plan


def student_of(teacher: PreTrainedModel, plan: Plan, names: list[str] | None = None) -> PreTrainedModel:
    """A converted copy, untrained: the same for one plan, whatever ran before. names: of its students, if not the plan's."""
    if names is None:
        names = plan.students(teacher.config.num_hidden_layers)
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        convert = convert_own if isinstance(teacher, MaclaurinForCausalLM) else linearise
        return convert(teacher, names, plan.options()).to(teacher.device)


def keep_inputs_alone(student: PreTrainedModel) -> None:
    """In training no more than its input is kept of a layer of transformers for the backward: sequences are long."""
    enable = getattr(student, "activation_checkpointing_enable", student.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


def mixing_layers(model: nn.Module) -> list[nn.Module]:
    """The attention of each layer: softmax in the source, students in the converted model."""
    if isinstance(model, MaclaurinForCausalLM):
        return [layer.get_submodule("mixer") for layer in model.model.layers]
    return attention_modules(model)


def new_parameters(teacher: nn.Module, student: nn.Module) -> list[str]:
    """The names of parameters that the source does not have."""
    known = {name for name, _ in teacher.named_parameters()}
    return [name for name, _ in student.named_parameters() if name not in known]


@dataclass
class Call:
    """One layer's arguments and result."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    def again(self, layer: nn.Module) -> Tensor:
        """The output of another layer for the same arguments."""
        output: Tensor = layer(*self.args, **self.kwargs)[0]
        return output


@dataclass
class TracedTeacher:
    """The source in a form whose layers take the same arguments as the student's, and a trace of their last calls."""

    model: PreTrainedModel
    calls: list[Call] = field(default_factory=list)

    @staticmethod
    def of(teacher: PreTrainedModel) -> TracedTeacher:
        if isinstance(teacher, MaclaurinForCausalLM):
            return TracedTeacher(teacher)
        same_form = linearise(teacher, [SOFTMAX] * teacher.config.num_hidden_layers).eval()
        same_form.load_state_dict(teacher.state_dict(), assign=True)  # in the memory of the teacher's weights
        return TracedTeacher(same_form)

    @torch.no_grad()
    def run(self, batch: dict[str, Tensor]) -> list[Call]:
        self.calls.clear()
        with self._tracing():
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            self.model(**inputs, **({"use_cache": False} if self.model.can_generate() else {}))
        return self.calls

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            kept = {name: value for name, value in kwargs.items() if name not in HANDED_OVER}
            self.calls.append(Call(args, kept, output[0]))

        handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in mixing_layers(self.model)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
