"""LUNA: Linear Universal Neural Attention with Generalization Guarantees (arXiv 2512.08061): accuracies on the Arena."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.lra import lra
from maclaurin.evals.suites.rows import one
from maclaurin.reproduce.table import Paper, Table

# encoders: every token sees all others
ENCODERS = {name: replace(one(name), bidirectional=True) for name in ("softmax", "luna", "performer", "hedgehog")}
PUBLISHED = {
    "listops": {"softmax": 0.3871, "luna": 0.3894, "performer": 0.1801},
    "imdb": {"softmax": 0.6155, "luna": 0.7341, "performer": 0.6540},
    "aan": {"softmax": 0.8093, "luna": 0.8102, "performer": 0.5382},
    "cifar10": {"softmax": 0.3914, "luna": 0.6432, "performer": 0.4277},
    "pathfinder": {"softmax": 0.7039, "luna": 0.6952, "performer": 0.7705},
}
# batch and learning rate of the harness that the baselines are from; 2 layers of width 64, MLPs of 128, 2 heads
HARNESS = {"listops": (32, 1e-4), "imdb": (32, 1e-4), "aan": (16, 2e-4), "cifar10": (256, 1e-4), "pathfinder": (128, 2e-4)}


def _small(preset: str, task: str) -> Experiment:
    base = next(one_of for one_of in lra(preset) if one_of.name == task)
    published = {label: f"{share:.4f}" for label, share in PUBLISHED[task].items()}
    return replace(base, rows=ENCODERS, seeds=3, published=published, source="LUNA, arXiv 2512.08061")


def _as_published(task: str) -> Experiment:
    base = _small("paper", task)
    batch, rate = HARNESS[task]
    setting = replace(base.setting, width=64, heads=2, layers=2, inner=128, batch=batch, weight_decay=0.0)
    return replace(base, setting=setting, learning_rates=(rate,))


def _table(task: str) -> Table:
    experiments = {"paper": _as_published(task)}
    if task == "listops":
        experiments = {"minutes": _small("quick", task), "day": _small("standard", task)} | experiments
    if task == "pathfinder":
        experiments = {"day": _small("standard", task)} | experiments
    return Table(
        name=task,
        where="Table of the Long Range Arena",
        shows=f"{task} of the Long Range Arena with bidirectional encoders",
        experiments=experiments,
        published=PUBLISHED[task],
        asks=(("luna", "softmax"), ("luna", "performer")),
        only="" if task == "listops" else "too long to learn in minutes, or a data set that is not generated",
    )


PAPER = Paper.of(
    "LUNA: Linear Universal Neural Attention with Generalization Guarantees, arXiv 2512.08061",
    *(_table(task) for task in PUBLISHED),
    Table(
        name="kernels",
        where="the theorems on kernels",
        shows="Performer and random Fourier features as special cases, errors by the number of features",
        lab={"minutes": ("approximation", {"quick": True}), "day": ("approximation", {})},
    ),
)
