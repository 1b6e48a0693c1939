"""Sliding windows beside an mLSTM: does a shorter window in training make recall reach further?

Both layers have a short convolution, which the published models do not have and which puts a key beside its value, so that
either can recall alone and training chooses which one does. The window comes first: behind an mLSTM, short trials left all
recall to that one, whatever the window. The mLSTM's norm has a smaller epsilon, so that the layer is not muted while its
input gate is still shut; what that alone changes was not measured.
"""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import mqar, no_paper


def swax(preset: str) -> list[Experiment]:
    no_paper("swax", preset, "the published models have 1.4 billion parameters")
    quick = preset == "quick"
    length, pairs, vocab_size = (128, 4, 32) if quick else (256, 16, 128)
    short, middle = length // 16, length // 4

    def hybrid(window: int, *, short_window: int | None = None, test_window: int | None = None) -> Row:
        options: dict[str, dict[str, float]] = {
            "sliding-window": {"conv_width": 2, "window": window},
            "mlstm": {"conv_width": 2, "norm_eps": 1e-12},
        }
        return Row(("sliding-window", "mlstm"), options, short_window, test_window)

    windows = {
        f"window-{short}": hybrid(short),
        f"window-{middle}": hybrid(middle),
        f"window-{length}": hybrid(length),
        f"stochastic-{short}-{length}": hybrid(length, short_window=short),
        f"window-{short}-tested-{length}": hybrid(short, test_window=length),
    }
    published = (
        "about 0.30 (window 128)",
        "good (window 512)",
        "about 0 (window 2048)",
        "about as window 128 (128, 2048)",
        "collapses",
    )

    def recall_at(tokens: int) -> tuple[Problem, ...]:
        return mqar(tokens, pairs, vocab_size=vocab_size, power=0.5)

    return [
        Experiment(
            "swax",
            f"Recall of {pairs} pairs, sliding windows and mLSTM in turn, trained up to {length} tokens: accuracy by length",
            windows,
            Setting(
                width=32 if quick else 128,
                heads=2 if quick else 4,
                layers=2 if quick else 4,
                inner=64 if quick else 256,
                steps=800 if quick else 6000,
                batch=16 if quick else 32,
                examples=200 if quick else 500,
            ),
            train=(*recall_at(length // 4), *recall_at(length // 2), *recall_at(length)),
            test=(*recall_at(length), *recall_at(2 * length), *recall_at(4 * length)),
            learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3, 1e-2),
            axis="length",
            seeds=3 if quick else 5,
            against={label: f"window-{length}" for label in windows if label != f"window-{length}"},
            published=dict(zip(windows, published, strict=True)),
            source="SWAX, arXiv 2509.24552: 1.4 billion parameters, needles at 131,072 tokens",
        )
    ]
