"""Handwritten digits: InLine, what is left without its parts, linear attention and softmax, at an equal size."""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import no_paper, one


def vision(preset: str) -> list[Experiment]:
    no_paper("vision", preset, "the published models are trained on ImageNet, which is not here")
    rows = {
        "softmax": one("softmax"),
        "linear": one("linear"),
        "inline": one("inline"),
        "inline-no-residual": one("inline", local_residual=False),
        "inline-relu": one("inline", feature_map="relu"),
        "inline-relu-no-residual": one("inline", feature_map="relu", local_residual=False),
        "inline-leaky-relu": one("inline", feature_map="leaky-relu"),
        "inline-exp": one("inline", feature_map="exp"),
    }
    return [
        Experiment(
            "digits",
            "Handwritten digits, 8x8 pixels as 64 tokens, 2 layers of width 32, 2 heads",
            rows,
            Setting("vision", 32, 2, 2, 64, steps=1000 if preset == "quick" else 4000, batch=32, weight_decay=0.05),
            train=(Problem("digits"),),
            test=(Problem("digits", {"split": "test"}),),
            learning_rates=(3e-3,) if preset == "quick" else (1e-3, 3e-3, 1e-2),
            reference=one("inline"),  # its local residual has more parameters than the MLPs of a smaller model
            seeds=5,
            published=dict.fromkeys(("inline", "inline-relu"), "above linear with each kernel; the residual helps"),
            source="InLine, arXiv 2412.06590, in words: Swin-T on ImageNet",
        )
    ]
