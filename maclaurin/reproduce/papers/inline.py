"""Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine, arXiv 2412.06590).

Its models are trained on ImageNet, which is not here: digits of 8 x 8 pixels stand in. Of its ablations no number could be
had, only their direction. `MaclaurinVisionConfig.of_size` builds the published sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maclaurin.evals.cells import Row
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.vision import KERNELS, vision
from maclaurin.reproduce.table import Paper, Table

IMAGENET = "the published models are trained on ImageNet"
WINDOWS = (2, 4, 8)  # of a grid of 8 x 8, for the published 7, 14, 28 and 56 of one of 56 x 56
# top-1 on ImageNet
TOP_1 = {"Swin-T": 0.813, "InLine-Swin-T": 0.824, "CSwin-T": 0.827, "InLine-CSwin-T": 0.832}


def _in_windows(layout: str, *windows: int, mixers: tuple[str, ...] = ("softmax",), **options: Any) -> Row:
    """Two stages on grids of 8 x 8 and 4 x 4; a window of 4 is the whole of the second."""
    row = Row(mixers, {mixers[0]: options} if options else {})
    fields = {"layout": layout, "windows": list(windows), "patch_sizes": [1, 2], "patch_norm": True}
    return replace(row, vision=fields)


def _inline_in(layout: str, window: int, **options: Any) -> Row:
    return _in_windows(layout, window, 4, mixers=("inline", "softmax"), **options)


def _experiments(name: str, shows: str, rows: dict[str, Row]) -> dict[str, Experiment]:
    """As the suite's, with two layers in each of two stages."""
    found = {}
    for budget, preset in (("minutes", "quick"), ("day", "standard")):
        (suite,) = vision(preset)
        found[budget] = replace(
            suite,
            name=name,
            title=f"{shows}: digits, 8x8 pixels as tokens, two stages of two layers, widths 32 and 64, equal parameters",
            rows=rows,
            setting=replace(suite.setting, layers=4),
            reference=_inline_in("swin", 8),
            against={},
            published={},
            source="",
        )
    return found


def _architectures() -> Table:
    shows = "Swin and CSwin: softmax in windows, and InLine over the whole grid in the first stage"
    rows = {
        "Swin-T": _in_windows("swin", 4, 4),
        "InLine-Swin-T": _inline_in("swin", 8),
        "CSwin-T": _in_windows("cswin", 2, 4),
        "InLine-CSwin-T": _inline_in("cswin", 8),
    }
    controls = {
        "Swin-T, softmax over the whole grid": _in_windows("swin", 8, 4),
        "CSwin-T, softmax over the whole grid": _in_windows("cswin", 8, 4),
    }
    return Table(
        name="windows",
        where="the tables of ImageNet",
        shows=shows,
        experiments=_experiments("windows", shows, rows | controls),
        published=TOP_1,
        asks=(("InLine-Swin-T", "Swin-T"), ("InLine-CSwin-T", "CSwin-T"), ("InLine-Swin-T", next(iter(controls)))),
        controls=tuple(controls),
        missing={
            "Swin-S and -B (InLine 0.836 and 0.841, softmax -B 0.835)": IMAGENET,
            "CSwin-S and -B (InLine 0.838 and 0.845, softmax 0.836 and 0.842)": IMAGENET,
            "DeiT-T, -S, -B (InLine 0.745, 0.802, 0.823, softmax -T 0.722)": IMAGENET,
            "PVT-T, -S, -M, -L (InLine 0.782, 0.820, 0.832, 0.836, softmax -T 0.751)": IMAGENET,
        },
        only=IMAGENET,
        note="InLine sees the whole grid where softmax has windows: the controls tell one from the other.",
    )


def _residual() -> Table:
    shows = "InLine in Swin's first stage: the window, and the local residual"
    rows = {f"window {side}": _inline_in("swin", side) for side in WINDOWS}
    bare = {f"window {side}, no residual": _inline_in("swin", side, local_residual=False) for side in WINDOWS}
    return Table(
        name="residual",
        where="the ablation of the local residual on Swin-T",
        shows=shows,
        experiments=_experiments("residual", shows, rows | bare),
        published=dict.fromkeys(rows, 0.0) | dict.fromkeys(bare, 1.0),
        in_words=True,
        asks=tuple(zip(rows, bare, strict=True)),
        only=IMAGENET,
        note="The paper says that the residual helps at every window; the verdict also compares one window with another.",
    )


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
        only=IMAGENET,
    ),
    _architectures(),
    _residual(),
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
