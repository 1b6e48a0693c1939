"""Folders as training and suites leave them, written in milliseconds."""

import json
import math
from dataclasses import replace

import pytest

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.results import SuiteResult
from maclaurin.evals.runner import save
from maclaurin.evals.summary import summary
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
        if recipe.test_rows:
            entries.append({"step": last, "test_loss": entries[-2]["eval_loss"] + 1})
        if result:
            figures = {
                "held_out_loss": next(entry["eval_loss"] for entry in reversed(entries) if "eval_loss" in entry),
                "tokens_per_second": 1000 * level,
                "peak_bytes": int(5e8 * level),
                "seconds": 9.5,
            }
            if recipe.test_rows:
                figures["test_loss"] = figures["held_out_loss"] + 1
            (folder / "result.json").write_text(json.dumps(figures))
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    start = {"first_step": 0, "versions": {"maclaurin": "9.8.7", "torch": "2.13.0"}, "devices": {"cpu": "abacus"}}
    (folder / "versions.json").write_text(json.dumps([start]))
    return folder


@pytest.fixture
def comparison(tmp_path):
    """Four mixers, two seeds each; the second seed of mamba2s has stopped half way."""
    folder = tmp_path / "compare"
    for run in plan(Recipe(output=str(folder), steps=STEPS, length=64), list(LEVELS), seeds=2, block="published"):
        stopped = (run.name, run.seed) == ("mamba2s", 1)
        write_run(run.recipe, LEVELS[run.name], until=STEPS // 2 if stopped else None)
    (folder / "compare.json").write_text(json.dumps({"command": "maclaurin compare --seeds 2", "rows": []}))
    return folder


def write_suite(folder, experiment, suite, value):
    """The folder of a suite whose cells have the accuracy that `value` gives for a row's label and a test's options."""
    cells = experiment.cells(experiment.seeds)
    for cell in cells:
        scores = []
        for problem in cell.test:
            accuracy = value(cell.label, problem.options)
            buckets = [(1, 2, int(10 * accuracy), 10), (2, 4, int(20 * accuracy), 20)] if problem.name == "mqar" else []
            scores.append(Score(accuracy, accuracy, 100, problem.options["length"], 4096, buckets))
        save(cell, Outcome(scores[-1].accuracy, scores, 98_304, 10, False, 1.5), folder)
    command = f"maclaurin suite {suite}"
    results = SuiteResult(command, suite, [summary(experiment, folder, {})]).to_json()
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def suites(tmp_path):
    """Recall by pairs and by length, and needles by depth and length."""
    folder = tmp_path / "results"
    setting = Setting(width=16, heads=2, inner=32)
    rows = {name: Row((name,)) for name in ("softmax", "2mamba", "linear")}

    def mqar(length, pairs):
        return Problem("mqar", {"length": length, "pairs": pairs, "vocab_size": 64})

    by_pairs = [mqar(128, pairs) for pairs in (2, 4, 8, 16, 32)]
    recall = Experiment("mqar", "Recall", rows, setting, tuple(by_pairs), tuple(by_pairs), (1e-3,), axis="pairs")
    by_length = [mqar(length, 4) for length in (32, 64, 128, 256)]
    longer = replace(recall, name="longer", axis="length", train=tuple(by_length[:2]), test=tuple(by_length))
    train, *_ = needles = [Problem("passkey", {"length": n, "depth": d}) for n in (64, 128, 256) for d in (0.0, 0.5, 1.0)]
    passkey = replace(longer, name="passkey", train=(train,), test=tuple(needles), across="depth", metric="exact")
    size = {"softmax": 64, "2mamba": 24, "linear": 6}
    write_suite(folder / "recall", recall, "recall", lambda row, own: min(1.0, size[row] / own["pairs"]))
    write_suite(folder / "longer", longer, "recall", lambda row, own: min(1.0, 3 * size[row] / own["length"]))
    write_suite(
        folder / "needle", passkey, "needle", lambda row, own: min(1.0, (size[row] + 64 * own["depth"]) / own["length"])
    )
    return folder
