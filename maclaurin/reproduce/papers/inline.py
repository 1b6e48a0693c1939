"""Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine, arXiv 2412.06590).

Directions of its ablations; its models are trained on ImageNet, which is not here.
"""

from __future__ import annotations

from maclaurin.evals.suites.vision import KERNELS, vision
from maclaurin.reproduce.table import Paper, Table

PAPER = Paper.of(
    "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine), arXiv 2412.06590",
    Table(
        name="kernels",
        where="the ablations on Swin-T",
        shows="Linear attention, the same kernels with InLine's centred weights, and InLine with its residual, on digits",
        experiments={"minutes": vision("quick")[0], "day": vision("standard")[0]},
        published={
            **{f"linear-{kernel}": 2.0 for kernel in KERNELS},
            **{f"centred-{kernel}": 1.0 for kernel in KERNELS},
            "inline-identity": 0.0,
        },
        in_words=True,
        asks=(("inline-identity", "softmax"), *((f"centred-{kernel}", f"linear-{kernel}") for kernel in KERNELS)),
        only="the published models are trained on ImageNet",
    ),
    Table(
        name="injectivity",
        where="Propositions 1 to 3, Figure 1",
        shows="Which mechanisms confuse two queries",
        lab={"minutes": ("injectivity", {"quick": True}), "day": ("injectivity", {})},
    ),
    Table(
        name="locality",
        where="the figures of local attention and of masks",
        shows="How much attention goes to the neighbours, and what it is worth",
        lab={"minutes": ("locality", {"quick": True}), "day": ("locality", {})},
    ),
)
