"""The six tasks of MAD (arXiv 2403.17844), each an experiment of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, MORE, rows_of

# by experiment: the task, what it shows, and its options, small ones first
TASKS: Mapping[str, tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = {
    "in-context-recall": ("mad-recall", "Values of keys", {"length": 64}, {}),
    "noisy-recall": ("mad-noisy-recall", "Values of keys among noise", {"length": 64}, {}),
    "fuzzy-recall": ("mad-fuzzy-recall", "Keys and values of one to three tokens", {"length": 64, "motif": 2}, {}),
    "memorisation": ("mad-memorisation", "Facts that no sequence says", {"vocab_size": 64}, {}),
    "compression": ("mad-compression", "All tokens from one vector", {"length": 8}, {}),
    "selective-copying": ("selective-copying", "Tokens among blanks", {"length": 64, "remember": 8}, {"length": 256}),
}
SETTINGS = {
    "quick": Setting(width=64, heads=4, inner=128, steps=600, batch=32, examples=400, stop_at=0.999),
    "standard": Setting(width=128, heads=8, inner=256, steps=4000, batch=64, examples=1000, stop_at=0.999),
    "paper": Setting(width=128, heads=8, inner=512, steps=20_000, batch=128, examples=1280, weight_decay=0.0),
}
RATES = {"quick": (3e-3, 1e-2), "standard": (5e-4, 1e-3, 3e-3), "paper": (1e-4, 5e-4, 1e-3)}


def mad(preset: str) -> list[Experiment]:
    return [_experiment(name, preset) for name in TASKS]


def _experiment(name: str, preset: str) -> Experiment:
    task, shows, small, full = TASKS[name]
    options = small if preset == "quick" else full
    problem = Problem(task, options)
    # the authors' tests have keys of the most tokens alone
    tests = (Problem(task, {**options, "longest_keys": True}),) if task == "mad-fuzzy-recall" else (problem,)
    return Experiment(
        name,
        f"MAD, {name}: {shows[0].lower()}{shows[1:]}",
        rows_of(*CORE) if preset == "quick" else rows_of(*CORE, *MORE),
        replace(SETTINGS[preset], model="compressed" if name == "compression" else "language"),
        train=(problem,),
        test=tests,
        learning_rates=RATES[preset],
        seeds=3,
    )
