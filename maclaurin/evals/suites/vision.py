"""Handwritten digits: linear attention, the same kernels with InLine's weights, InLine with its residual, and softmax."""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import no_paper, one

KERNELS = ("identity", "relu", "leaky-relu", "exp")


def vision(preset: str) -> list[Experiment]:
    no_paper("vision", preset, "the published models are trained on ImageNet, which is not here")
    # the paper's ablation: the same block and kernel, weights divided by their sum or centred, then the residual
    divided = {f"linear-{kernel}": one("linear", feature_map=kernel) for kernel in KERNELS}
    centred = {f"centred-{kernel}": one("inline", feature_map=kernel, local_residual=False) for kernel in KERNELS}
    whole = {f"inline-{kernel}": one("inline", feature_map=kernel) for kernel in KERNELS}
    if preset == "quick":
        whole = {"inline-identity": whole["inline-identity"]}
    return [
        Experiment(
            "digits",
            "Handwritten digits, 8x8 pixels as 16 tokens of 2x2, 2 layers of width 32, 2 heads, equal parameters",
            {"softmax": one("softmax"), **divided, **centred, **whole},
            Setting("vision", 32, 2, 2, 64, steps=800 if preset == "quick" else 4000, batch=32, weight_decay=0.05),
            train=(Problem("digits"),),
            test=(Problem("digits", {"split": "test"}),),
            learning_rates=(3e-3, 1e-2) if preset == "quick" else (1e-3, 3e-3, 1e-2),
            reference=one("inline"),  # its local residual has more parameters than the MLPs of the setting
            seeds=5,
            against={
                **{f"centred-{kernel}": f"linear-{kernel}" for kernel in KERNELS},
                **dict.fromkeys(whole, "linear-relu"),  # plain linear attention
            },
            published={
                **dict.fromkeys(centred, "above linear attention with the same kernel"),
                **dict.fromkeys(whole, "above the same without the residual"),
            },
            source="InLine, arXiv 2412.06590, in words: Swin-T on ImageNet",
        )
    ]
