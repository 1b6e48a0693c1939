"""Sliding windows beside an mLSTM: does a shorter window in training make recall reach further?"""

from __future__ import annotations

from maclaurin.evals.cells import Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import mqar, no_paper


def swax(preset: str) -> list[Experiment]:
    no_paper("swax", preset, "the published models have 1.4 billion parameters")

    def hybrid(window: int, **changes: int) -> Row:
        return Row(("mlstm", "sliding-window"), {"sliding-window": {"window": window}}, **changes)

    length = 256
    return [
        Experiment(
            "swax",
            f"Recall of 16 pairs in {length} tokens, mLSTM and sliding windows in turn: near and far",
            {
                "window-16": hybrid(16),
                "window-64": hybrid(64),
                "window-256": hybrid(256),
                "stochastic-16-256": hybrid(256, short_window=16),
                "window-16-tested-256": hybrid(16, test_window=256),
            },
            Setting(
                width=64 if preset == "quick" else 128,
                layers=4,
                inner=128 if preset == "quick" else 256,
                steps=1000 if preset == "quick" else 6000,
                batch=16 if preset == "quick" else 32,
                examples=500,
            ),
            train=mqar(length, 16, power=0.5),
            test=(*mqar(length, 16, power=0.5), *mqar(2 * length, 16, power=0.5)),
            learning_rates=(3e-3,) if preset == "quick" else (1e-3, 3e-3),
            axis="length",
            seeds=2 if preset == "quick" else 5,
            published={
                "window-16": "about 0.30 (window 128)",
                "window-64": "good (window 512)",
                "window-256": "about 0 (window 2048)",
                "stochastic-16-256": "about as window 128 (128, 2048)",
                "window-16-tested-256": "collapses",
            },
            source="SWAX, arXiv 2509.24552: 1.4 billion parameters, needles at 131,072 tokens",
        )
    ]
