"""Attention transfer of a decoder, one layer after another, from the source's states on disk.

A layer learns for itself: its student gets the input that the source's attention had, and learns its output. So the source
runs once over the text, however often layers read it, no more than one layer is in memory, and what is done is a file per
layer: an interrupted transfer begins with the layer that it was at.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from maclaurin.common.files import replacing
from maclaurin.common.progress import Status
from maclaurin.common.sizes import size_text
from maclaurin.convert.data import Batch
from maclaurin.convert.objectives import PROJECTIONS, relative_error
from maclaurin.convert.stage import rate_factor, save_finished
from maclaurin.convert.states import LayerInputs
from maclaurin.convert.teacher_student import TracedTeacher, mixing_layers
from maclaurin.convert.times import timed
from maclaurin.models.linearised.students import SOFTMAX, is_new
from maclaurin.training.checkpoints import writing
from maclaurin.training.conversion import Plan

LOG_SCALE = "log_scale"  # of the far weights: right only to some powers of e where training begins
FASTER = 10  # times its learning rate is higher than that of others


def rows_kept(plan: Plan) -> int:
    """How many sequences have their states on disk."""
    seen = plan.transfer_steps * plan.batch_size
    return min(plan.transfer_rows or seen, seen)


class LayerTransfer:
    """folder: with a file of trained parameters per layer, and the states while they are needed."""

    def __init__(self, folder: Path, teacher: PreTrainedModel, student: PreTrainedModel, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.traced = TracedTeacher.of(teacher)
        self.student = student
        self.pairs = list(zip(mixing_layers(self.traced.model), mixing_layers(student), strict=True))
        self.layers = [index for index, name in enumerate(student.config.students) if name != SOFTMAX]

    def finish(self, batches: Dataset[Batch] | Sequence[Batch], say: Callable[[str], None]) -> None:
        """As a stage: with the whole student in its folder at the end, and without the states."""
        with timed(self.folder):
            self.run(batches, say)
        save_finished(self.student, self.folder, self.folder / f".staging-{secrets.token_hex(8)}")
        shutil.rmtree(self._states, ignore_errors=True)

    def run(self, batches: Dataset[Batch] | Sequence[Batch], say: Callable[[str], None]) -> None:
        """Trains every layer that is not done, and leaves all of them in the student."""
        missing = [layer for layer in self.layers if not self._file(layer).exists()]
        if missing:
            inputs = LayerInputs(self._states, self.traced, self._rows(cast(Sequence[Batch], batches)))
            with Status() as status:
                rows, length = inputs.ids.shape
                say(f"states of {rows} sequences of {length} tokens: {size_text(inputs.nbytes)} on disk")
                inputs.compute(self._at_once, lambda done: status(f"states of {done} of {rows} sequences"))
                for layer in missing:
                    status(f"layer {layer} of {len(self.pairs)}")
                    error = self._train(layer, inputs, self.plan.transfer_steps)
                    say(f"layer {layer}: error {error:.4f}")
        for layer in self.layers:
            self._put_back(layer, load_file(self._file(layer)))

    def _rows(self, batches: Sequence[Batch]) -> Tensor:
        """The sequences that states are kept of, from all over the text."""
        rows = rows_kept(self.plan)
        generator = torch.Generator().manual_seed(self.plan.seed)
        order = torch.randperm(len(batches), generator=generator, device="cpu").tolist()
        ids: list[Tensor] = []
        for index in order:
            if len(ids) >= rows:
                break
            ids += batches[index]["input_ids"].unbind(0)
        return torch.stack(ids[:rows])

    @property
    def _at_once(self) -> int:
        return max(1, self.plan.batch_size // self.plan.accumulate)

    def _train(self, layer: int, inputs: LayerInputs, steps: int) -> float:
        """Returns the error of the last tenth of the steps."""
        source, module = self.pairs[layer]
        rates = self._rates(module)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in rates)
        groups = [{"params": [module.get_parameter(name)], "lr": rate} for name, rate in rates.items()]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(min(step, steps - 1), steps))
        arguments = inputs.arguments[layer]
        errors: list[float] = []
        for rows in self._order(len(inputs.ids), layer, steps):
            x = inputs.read(layer, rows)
            with torch.no_grad():
                wanted = source(x, **arguments)[0]
            error = relative_error(module(x, **arguments)[0], wanted, None)
            error.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            errors.append(error.item())
        self._save(layer, {name: module.get_parameter(name).detach() for name in rates})
        last = errors[-max(1, steps // 10) :]
        return sum(last) / len(last)

    def _rates(self, module: nn.Module) -> dict[str, float]:
        """Of the student's own parameters and, if asked for, of the projections to queries and keys."""
        slower = self.plan.transfer_rate / self.plan.map_rate
        rates = {name: self.plan.transfer_rate for name, _ in module.named_parameters() if is_new(f".{name}")}
        rates |= {name: FASTER * rate for name, rate in rates.items() if name.endswith(LOG_SCALE)}
        if self.plan.train_projections:
            rates |= {name: slower for name, _ in module.named_parameters() if PROJECTIONS.search(f".{name}")}
        return rates

    def _order(self, rows: int, layer: int, steps: int) -> Iterator[list[int]]:
        """The sequences of every step: all of them in another order, again and again."""
        generator = torch.Generator().manual_seed(self.plan.seed * 1000 + layer)
        left: list[int] = []
        for _ in range(steps):
            while len(left) < self.plan.batch_size:
                left += torch.randperm(rows, generator=generator, device="cpu").tolist()
            yield left[: self.plan.batch_size]
            left = left[self.plan.batch_size :]

    @torch.no_grad()
    def _put_back(self, layer: int, values: dict[str, Tensor]) -> None:
        module = self.pairs[layer][1]
        for name, value in values.items():
            module.get_parameter(name).copy_(value)

    def _save(self, layer: int, values: dict[str, Tensor]) -> None:
        file = self._file(layer)
        with writing(file), replacing(file) as temporary:
            save_file({name: value.contiguous() for name, value in values.items()}, temporary)

    @property
    def _states(self) -> Path:
        return self.folder / "states"

    def _file(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:02d}.safetensors"
