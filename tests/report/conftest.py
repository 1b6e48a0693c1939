"""Run folders as training leaves them, written in milliseconds."""

import json
import math

import pytest

from maclaurin.training import Recipe
from maclaurin.training.compare import plan

LEVELS = {"softmax": 2.40, "2mamba": 2.35, "linear": 2.90, "mamba2s": 2.42}
STEPS = 100


def write_run(recipe, level, *, until=None, result=True):
    """A run whose losses fall towards `level`; one that ends before its last step has no result."""
    from pathlib import Path

    folder = Path(recipe.output)
    folder.mkdir(parents=True)
    recipe.save(folder)
    last = recipe.steps if until is None else until
    entries = []
    for step in range(5, last + 1, 5):
        loss = level + 3 * math.exp(-step / 25) + 0.01 * recipe.seed
        entries.append({"step": step, "loss": loss + 0.05, "grad_norm": 1.0, "learning_rate": 1e-3})
        if step % 20 == 0:
            entries.append({"step": step, "eval_loss": loss, "eval_runtime": 1.0})
    if last == recipe.steps:
        entries.append({"step": last, "train_runtime": 8.0, "train_loss": 3.0})
        if result:
            figures = {
                "held_out_loss": entries[-2]["eval_loss"],
                "tokens_per_second": 1000 * level,
                "peak_bytes": int(5e8 * level),
                "seconds": 9.5,
            }
            (folder / "result.json").write_text(json.dumps(figures))
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    start = {"first_step": 0, "versions": {"maclaurin": "9.8.7", "torch": "2.13.0"}, "devices": {"cpu": "abacus"}}
    (folder / "versions.json").write_text(json.dumps([start]))
    return folder


@pytest.fixture
def comparison(tmp_path):
    """Four mixers, two seeds each; the second seed of mamba2s has stopped half way."""
    folder = tmp_path / "compare"
    for run in plan(Recipe(output=str(folder), steps=STEPS, length=64), list(LEVELS), seeds=2):
        stopped = (run.name, run.seed) == ("mamba2s", 1)
        write_run(run.recipe, LEVELS[run.name], until=STEPS // 2 if stopped else None)
    (folder / "compare.json").write_text(json.dumps({"command": "maclaurin compare --seeds 2", "rows": []}))
    return folder
