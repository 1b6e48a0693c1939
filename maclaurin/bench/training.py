"""What the trainer adds to a step: everything but the forward, the backward and the optimizer of the bare model.

A twin of the model takes the same batch by hand right after each step of the trainer, in the same process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, TrainerCallback

from maclaurin.common.records import Record
from maclaurin.training import Recipe, train

MIXERS = ("softmax", "2mamba", "mamba2")
STEPS, WARM_UP = 48, 8


@dataclass(frozen=True)
class TrainingRow(Record):
    """overhead: of the trainer over the bare model, as a share."""

    mixer: str
    bare_ms: float
    trainer_ms: float
    overhead: float
    tokens_per_s: float


def run(console: Console, *, long: bool) -> list[TrainingRow]:
    rows = [_measure(mixer) for mixer in MIXERS]
    table = Table(title=f"one training step, size tiny, 8 sequences of 512 tokens: ms, median of {STEPS - WARM_UP}")
    for column in ("mixer", "bare model", "trainer", "overhead", "tokens/s"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (f"{row.bare_ms:.1f}", f"{row.trainer_ms:.1f}", f"{100 * row.overhead:.1f} %")
        table.add_row(row.mixer, *times, f"{row.tokens_per_s:,.0f}")
    console.print(table)
    return rows


def _measure(mixer: str) -> TrainingRow:
    twin = _Twin()
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(output=str(Path(folder) / "run"), mixer=mixer, steps=STEPS, eval_every=STEPS, save_every=STEPS)
        train(recipe, callbacks=[twin])
    # evaluation and checkpoints come at intervals of the user's choice: the last step, which has them, is left out
    steps = twin.steps[WARM_UP : STEPS - 1]
    bare, whole = (statistics.median(times) for times in zip(*steps, strict=True))
    overhead = statistics.median(trainer / twin - 1 for twin, trainer in steps)
    return TrainingRow(mixer, 1000 * bare, 1000 * whole, overhead, recipe.length * recipe.batch_size / whole)


class _Twin(TrainerCallback):
    """Records seconds per step: of the bare twin, and of the trainer from the end of one step to the end of the next.

    It is the last callback, so the work of the others counts as the trainer's.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.resumed = 0.0

    def on_train_begin(self, *args: Any, model: PreTrainedModel, **kwargs: Any) -> None:
        self.model = type(model)(model.config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: torch.nn.Module, args: tuple[()], batch: dict[str, Any]) -> None:
        if model.training:  # not evaluated
            self.batch = batch

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        ended = time.perf_counter()
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        twin = time.perf_counter() - ended
        if self.resumed:
            self.steps.append((twin, ended - self.resumed))
        self.resumed = time.perf_counter()
