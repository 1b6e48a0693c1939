"""One training stage of a conversion: an objective, the trained parameters, and a folder from which it can always resume.

A stage is done when its folder contains a model; until then it contains checkpoints of the Trainer, which are never partial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from maclaurin.convert.data import Batch
from maclaurin.convert.times import timed
from maclaurin.processes.stopping import TERMINATE, Terminated
from maclaurin.training.callbacks import JsonLog, LastStep, LiveProgress, StopOnInterrupt
from maclaurin.training.checkpoints import deliver, last_whole, remove_own, writing
from maclaurin.training.trainer import LanguageTrainer, arguments

Objective = Callable[[nn.Module, Batch], Tensor]
LOG = "losses.jsonl"
FIRST_POINT = 8  # steps


@dataclass(frozen=True)
class Stage:
    """rates: the largest learning rate of every parameter that is trained, by name; all others are frozen.

    at_end: what is done to the model between its last step and the end of the stage. accumulate: items of the data per step.
    watch: called with the number of steps so far as often as it doubles, before the last one.
    """

    folder: Path
    objective: Objective
    rates: dict[str, float]
    steps: int
    tokens_per_step: int
    save_every: int
    seed: int
    at_end: Callable[[], None] | None = None
    accumulate: int = 1
    watch: Callable[[int], None] | None = None

    @property
    def done(self) -> bool:
        return is_done(self.folder)

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
            callbacks=[LastStep(), JsonLog(self.folder / LOG), Doubling(self.watch), progress, interrupt],
            keep=1,
        )
        try:
            with timed(self.folder), interrupt:
                trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        finally:
            progress.close()
        finished = trainer.state.global_step >= self.steps
        if finished:
            self._finish(model, trainer)
        elif interrupt.requested in TERMINATE:
            raise Terminated(interrupt.requested)
        return finished

    def _finish(self, model: PreTrainedModel, trainer: LanguageTrainer) -> None:
        """Checkpoints are removed once the model is there."""
        if self.at_end is not None:
            self.at_end()
        save_finished(model, self.folder, trainer.staging)
        remove_own(self.folder)

    def _arguments(self) -> TrainingArguments:
        return arguments(
            str(self.folder),
            self.steps,
            per_device_train_batch_size=1,  # an item of the data is a batch, or a part of one
            gradient_accumulation_steps=self.accumulate,
            learning_rate=max(self.rates.values()),
            weight_decay=0.0,
            adam_beta2=0.98,
            max_grad_norm=1.0,
            save_steps=self.save_every or math.ceil(self.steps / 4),
            logging_steps=max(1, min(25, self.steps // 10)),
            seed=self.seed,
        )


def is_done(folder: Path) -> bool:
    """Whether a stage's folder contains its model."""
    return (folder / "config.json").exists()


def save_finished(model: PreTrainedModel, folder: Path, staging: Path) -> None:
    """Atomic: the file that marks a stage as done is renamed last."""
    with writing(folder):
        model.save_pretrained(staging)
        deliver(staging, folder)


class Doubling(TrainerCallback):
    """Calls `watch` after FIRST_POINT steps, twice as many, and so on."""

    def __init__(self, watch: Callable[[int], None] | None) -> None:
        self.watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        times, rest = divmod(state.global_step, FIRST_POINT)
        if self.watch is not None and not rest and times.bit_count() == 1 and state.global_step < state.max_steps:
            self.watch(state.global_step)


class StageTrainer(LanguageTrainer):
    """The project's trainer with a stage's objective, and a learning rate per parameter."""

    optimizer: torch.optim.Optimizer | None
    lr_scheduler: LRScheduler | None

    def __init__(self, stage: Stage, **kwargs: Any) -> None:
        self.stage = stage
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False  # an objective is a mean: parts of a step are averaged, not added

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
