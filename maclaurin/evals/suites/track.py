"""State tracking: the product of all moves so far, at lengths never trained on."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import rows_of


def track(preset: str) -> list[Experiment]:
    published = {
        "gla-selective": "solves it and extrapolates",
        "softmax-selective": "solves it",
        "softmax": "does not solve it",
    }
    parity = Experiment(
        "parity",
        "Parity of the bits so far, one layer, trained at 64 tokens: share of right answers by length",
        rows_of("gla-selective", "gla-conv", "softmax-selective", "softmax", "mlstm", "qlstm"),
        Setting(
            width=64, heads=4, layers=1, inner=128, steps=1500, batch=64, weight_decay=1e-6, stop_at=0.999, examples=500
        ),
        train=(Problem("parity", {"length": 64}),),
        test=tuple(Problem("parity", {"length": length}) for length in (32, 64, 128, 256, 512)),
        learning_rates=(3e-3, 1e-2),
        axis="length",
        published=published,
        source="Selective RoPE, arXiv 2511.17388, in words: 1 layer, width 384, trained at 128, tested at 512",
    )
    if preset == "quick":
        return [parity]
    size = (
        Setting(width=384, heads=12, layers=1, inner=768, steps=10_000, batch=1024, weight_decay=1e-6, stop_at=0.99)
        if preset == "paper"
        else replace(parity.setting, width=128, inner=256, steps=6000, batch=128, examples=1000)
    )
    found = []
    for group in ("parity", "Z5", "A3", "S3", "A5", "S5"):
        layers = 2 if group in ("A3", "S3", "A5", "S5") else 1
        found.append(
            replace(
                parity,
                name=group if group == "parity" else f"track-{group}",
                title=f"{group}: the product of all moves so far, {layers} layers, trained at 128 tokens",
                setting=replace(size, layers=layers),
                rows=rows_of(*parity.rows, "gated-delta", "mamba2s", "2mamba"),
                train=(Problem("state-tracking", {"group": group, "length": 128}),),
                test=tuple(Problem("state-tracking", {"group": group, "length": n}) for n in (64, 128, 256, 512)),
                learning_rates=(1e-4, 1e-3, 1e-2) if preset == "paper" else (1e-3, 3e-3, 1e-2),
                seeds=5 if preset == "paper" else 3,
                published=published if group == "parity" else {},
            )
        )
    return found
