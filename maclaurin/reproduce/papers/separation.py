"""Superiority of Softmax: Unveiling the Performance Edge Over Linear Attention (arXiv 2310.11685), from its abstract."""

from __future__ import annotations

from maclaurin.reproduce.table import Paper, Table

PAPER = Paper.of(
    "Superiority of Softmax: Unveiling the Performance Edge Over Linear Attention, arXiv 2310.11685",
    Table(
        name="separation",
        where="the theorem and its numerical section",
        shows="Two data sets that softmax tells apart and linear attention does not, with sweeps of every parameter",
        lab={"minutes": ("separation", {"quick": True}), "day": ("separation", {}), "paper": ("separation", {})},
    ),
)
