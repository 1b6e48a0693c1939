"""One training stage of a conversion: an objective, the trained parameters, and a folder from which it can always resume.

A stage is done when its folder contains a model; until then it contains checkpoints of the Trainer, which are never partial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainingArguments

from maclaurin.common.files import read_json, write_json
from maclaurin.common.records import Record
from maclaurin.convert.data import Batch
from maclaurin.processes.stopping import TERMINATE, Terminated
from maclaurin.training.callbacks import JsonLog, LastStep, LiveProgress, StopOnInterrupt
from maclaurin.training.checkpoints import deliver, last_whole, remove_own, writing
from maclaurin.training.trainer import LanguageTrainer, arguments

Objective = Callable[[nn.Module, Batch], Tensor]
TIMES, LOG = "times.json", "losses.jsonl"


@dataclass(frozen=True)
class Times(Record):
    """Wall time, and CPU time of all cores together."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Stage:
    """rates: the largest learning rate of every parameter that is trained, by name; all others are frozen.

    at_end: what is done to the model between its last step and the end of the stage.
    """

    folder: Path
    objective: Objective
    rates: dict[str, float]
    steps: int
    tokens_per_step: int
    save_every: int
    seed: int
    at_end: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        return (self.folder / "config.json").exists()

    def run(self, model: PreTrainedModel, batches: Dataset[Batch] | Sequence[Batch]) -> bool:
        """Trains the model in place; False if Ctrl-C stopped it: the next call resumes."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.rates)
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = last_whole(self.folder)
        interrupt = StopOnInterrupt()
        progress = LiveProgress(self.tokens_per_step)
        trainer = StageTrainer(
            self,
            model=model,
            args=self._arguments(),
            train_dataset=batches,
            data_collator=_only,
            callbacks=[LastStep(), JsonLog(self.folder / LOG), progress, interrupt],
            keep=1,
        )
        started, cpu = time.monotonic(), time.process_time()
        try:
            with interrupt:
                trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        finally:
            progress.close()
            self._add(time.monotonic() - started, time.process_time() - cpu)
        finished = trainer.state.global_step >= self.steps
        if finished:
            self._finish(model, trainer)
        elif interrupt.requested in TERMINATE:
            raise Terminated(interrupt.requested)
        return finished

    def _finish(self, model: PreTrainedModel, trainer: LanguageTrainer) -> None:
        """Atomic: the file that marks it as done is renamed last. Checkpoints are then removed."""
        if self.at_end is not None:
            self.at_end()
        with writing(self.folder):
            model.save_pretrained(trainer.staging)
            deliver(trainer.staging, self.folder)
        remove_own(self.folder)

    def times(self) -> Times:
        """Of all its runs together."""
        try:
            return Times.from_json(read_json(self.folder / TIMES))
        except (OSError, ValueError):  # missing or damaged: counted from now on
            return Times(0.0, 0.0)

    def _add(self, seconds: float, cpu_seconds: float) -> None:
        before = self.times()
        times = Times(before.seconds + seconds, before.cpu_seconds + cpu_seconds)
        write_json(self.folder / TIMES, times.to_json())

    def _arguments(self) -> TrainingArguments:
        return arguments(
            str(self.folder),
            self.steps,
            per_device_train_batch_size=1,  # an item of the data is a batch
            learning_rate=max(self.rates.values()),
            weight_decay=0.0,
            adam_beta2=0.98,
            max_grad_norm=1.0,
            save_steps=self.save_every or math.ceil(self.steps / 4),
            logging_steps=max(1, min(25, self.steps // 10)),
            seed=self.seed,
        )


class StageTrainer(LanguageTrainer):
    """The project's trainer with a stage's objective, and a learning rate per parameter."""

    optimizer: torch.optim.Optimizer | None
    lr_scheduler: LRScheduler | None

    def __init__(self, stage: Stage, **kwargs: Any) -> None:
        self.stage = stage
        super().__init__(**kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        return self.stage.objective(model, inputs)

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            groups: dict[float, list[nn.Parameter]] = {}
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    groups.setdefault(self.stage.rates[name], []).append(parameter)
            self.optimizer = torch.optim.AdamW(
                [{"params": group, "lr": rate} for rate, group in sorted(groups.items())],
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                weight_decay=0.0,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None:
            assert self.optimizer is not None
            self.lr_scheduler = LambdaLR(self.optimizer, partial(rate_factor, steps=num_training_steps))
        return self.lr_scheduler


def rate_factor(step: int, steps: int) -> float:
    """Warm-up over a tenth of the steps, at most 20, then decay to 0. Stages are short, so no step has a rate of 0."""
    rising = min(20, math.ceil(steps / 10))
    return min((step + 1) / rising, (steps - step) / (steps - rising + 1))


def _only(batches: list[Batch]) -> Batch:
    (batch,) = batches
    return batch
