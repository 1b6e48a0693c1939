"""How long a conversion of a decoder will take, from one step of each kind whose results are thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable

from transformers import PreTrainedModel

from maclaurin.common.progress import time_text
from maclaurin.convert.data import Data
from maclaurin.convert.objectives import relative_error
from maclaurin.convert.stage import Objective
from maclaurin.convert.teacher_student import TracedTeacher, keep_inputs_alone, mixing_layers
from maclaurin.convert.transfer import rows_kept
from maclaurin.models.linearised.students import SOFTMAX
from maclaurin.training.conversion import Plan


def forecast(teacher: PreTrainedModel, student: PreTrainedModel, data: Data, plan: Plan, recover: Objective) -> str:
    """student: one that nobody needs afterwards. Evaluation between the stages is not counted."""
    batch = {name: value.to(teacher.device) for name, value in data.train[0].items()}
    rows = len(batch["input_ids"])
    layers = [layer for layer, name in enumerate(student.config.students) if name != SOFTMAX]
    traced = TracedTeacher.of(teacher)
    parts = {}
    if plan.transfer_steps:
        parts["states of the source"] = _seconds(lambda: traced.run(batch)) * rows_kept(plan) / rows
        call, layer = traced.calls[layers[-1]], mixing_layers(student)[layers[-1]]
        step = _seconds(lambda: relative_error(call.again(layer), call.output, None).backward())
        parts["transfer"] = step * len(layers) * plan.transfer_steps * plan.accumulate
    if plan.recover_steps:
        keep_inputs_alone(student.train())
        step = _seconds(lambda: recover(student, batch).backward())
        parts["recovery"] = step * plan.recover_steps * plan.accumulate
    listed = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in parts.items())
    return f"forecast: {time_text(sum(parts.values()))} ({listed})" if parts else "forecast: nothing to train"


def _seconds(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began
