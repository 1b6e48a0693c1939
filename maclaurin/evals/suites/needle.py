"""The pass key of the thesis, byte by byte: depth by length, beyond the lengths trained on."""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, no_paper, rows_of


def needle(preset: str) -> list[Experiment]:
    no_paper("needle", preset, "the published needles are those of language models of 400,000 steps")
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    lengths = (128, 256, 512, 1024, 2048) if preset == "quick" else (256, 512, 1024, 2048, 4096, 8192)
    names = ("softmax", "mamba2s", "2mamba") if preset == "quick" else (*CORE, "gla", "gated-delta", "mlstm")
    quick = Setting(width=64, heads=4, steps=800, batch=16, stop_at=0.999, examples=40)
    standard = Setting(width=128, heads=4, layers=4, inner=256, steps=6000, batch=16, stop_at=0.999, examples=100)
    return [
        Experiment(
            "passkey",
            "A pass key in a long text, byte by byte: keys said without a mistake, by length and depth",
            rows_of(*names),
            quick if preset == "quick" else standard,
            train=tuple(Problem("passkey", {"length": length}) for length in lengths[: 2 if preset == "quick" else 3]),
            test=tuple(Problem("passkey", {"length": n, "depth": depth}) for n in lengths for depth in depths),
            learning_rates=(3e-3,) if preset == "quick" else (1e-3, 3e-3),
            axis="length",
            across="depth",
            metric="exact",
            seeds=1 if preset == "quick" else 3,
            published={
                "softmax": "1.00 1.00 1.00 0.94 0.38",
                "2mamba": "1.00 1.00 1.00 1.00 0.95",
                "mamba2": "0.94 0.45 0.15 0.03 0.03 (one head)",
            },
            source="arXiv 2602.17363, at 1024, 2048, 4096, 8192 and 16384 characters: language models, medium, FineWeb",
        )
    ]
