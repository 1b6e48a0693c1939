"""The pass key of the thesis (arXiv 2602.17363): depth by length, beyond the lengths of training.

`quick` has one token per word, `standard` one per byte: see `passkey.py`. A saved model has its own tokenizer.
"""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, no_paper, rows_of

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def needle(preset: str) -> list[Experiment]:
    no_paper("needle", preset, "the published needles are those of language models of 400,000 steps")
    quick = preset == "quick"
    token = "word" if quick else "byte"
    names = ("softmax-conv", "gla-conv", "2mamba") if quick else (*CORE, "gla-conv", "gated-delta", "mlstm")
    trained = (32, 64, 128) if quick else (32, 64, 128, 256, 512)
    tested = (128, 256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096, 8192, 16384)
    return [
        Experiment(
            "passkey",
            f"A pass key in a long text, one token per {token}: exact keys by characters of hay and depth",
            rows_of(*names),
            Setting(width=64, heads=4, steps=600, batch=32, examples=40)
            if quick
            else Setting(width=128, heads=4, layers=4, inner=256, steps=6000, batch=16, stop_at=0.999, examples=100),
            train=tuple(Problem("passkey", {"length": n, "token": token, "every_mention": True}) for n in trained),
            test=tuple(
                Problem("passkey", {"length": n, "token": token, "depth": depth}) for n in tested for depth in DEPTHS
            ),
            learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3),
            axis="length",
            across="depth",
            metric="exact",
            seeds=3,
            published={
                "softmax": "1.00 1.00 1.00 0.94 0.38",
                "2mamba": "1.00 1.00 1.00 1.00 0.95",
                "mamba2": "0.94 0.45 0.15 0.03 0.03 (one head)",
            },
            source="arXiv 2602.17363, at 1024, 2048, 4096, 8192 and 16384 characters: language models, medium, FineWeb",
        )
    ]
