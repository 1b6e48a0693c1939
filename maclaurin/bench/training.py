"""What the trainer adds to a step: everything but the forward, the backward and the optimizer of the bare model.

A twin of the model takes the same batch by hand right after each step of the trainer, in the same process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from maclaurin.training import Recipe
from maclaurin.training import run as run_module
from maclaurin.training.trainer import LanguageTrainer

MIXERS = ("softmax", "2mamba", "mamba2")
STEPS, WARM_UP = 48, 8


def run(console: Console, *, long: bool) -> list[dict[str, Any]]:
    rows = [_measure(mixer) for mixer in MIXERS]
    table = Table(title=f"one training step, size tiny, 8 rows of 512 tokens: ms, median of {STEPS - WARM_UP}")
    for column in ("mixer", "bare model", "trainer", "overhead", "tokens/s"):
        table.add_column(column, justify="right")
    for row in rows:
        share = f"{100 * row['overhead']:.1f} %"
        table.add_row(
            row["mixer"], f"{row['bare_ms']:.1f}", f"{row['trainer_ms']:.1f}", share, f"{row['tokens_per_s']:,.0f}"
        )
    console.print(table)
    return rows


def _measure(mixer: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(output=str(Path(folder) / "run"), mixer=mixer, steps=STEPS, eval_every=STEPS, save_every=STEPS)
        observed: list[_WithTwin] = []

        class Observed(_WithTwin):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                observed.append(self)

        with patch.object(run_module, "LanguageTrainer", Observed):
            run_module.train(recipe)
    # evaluation and checkpoints come at intervals of the user's choice: the last step, which has them, is left out
    steps = observed[0].steps[WARM_UP : STEPS - 1]
    bare, whole = (statistics.median(times) for times in zip(*steps, strict=True))
    overhead = statistics.median(trainer / twin - 1 for twin, trainer in steps)
    tokens = recipe.length * recipe.batch_size
    return {
        "mixer": mixer,
        "bare_ms": 1000 * bare,
        "trainer_ms": 1000 * whole,
        "overhead": overhead,
        "tokens_per_s": tokens / whole,
    }


class _WithTwin(LanguageTrainer):
    """Notes seconds a step: of the bare twin, and of the trainer from the end of one step to the end of the next."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[tuple[float, float]] = []
        self.twin = type(self.model)(self.model.config).train()
        self.twin_optimizer = torch.optim.AdamW(self.twin.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        self.batch: dict[str, Any] = {}
        self.resumed = 0.0
        # last, so that what the other callbacks do counts as the trainer's
        self.add_callback(_AfterStep(self))

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.batch = inputs
        return super().training_step(model, inputs, *args, **kwargs)

    def step_by_hand(self) -> None:
        ended = time.perf_counter()
        self.twin(**self.batch).loss.backward()
        self.twin_optimizer.step()
        self.twin_optimizer.zero_grad()
        twin = time.perf_counter() - ended
        if self.resumed:
            self.steps.append((twin, ended - self.resumed))
        self.resumed = time.perf_counter()


class _AfterStep(TrainerCallback):
    def __init__(self, trainer: _WithTwin) -> None:
        self.trainer = trainer

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.step_by_hand()
