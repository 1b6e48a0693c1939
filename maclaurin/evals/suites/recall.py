"""Recall of key-value pairs: how many fit into the state?"""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, MORE, STATE_SIZES, mqar, rows_of


def recall(preset: str) -> list[Experiment]:
    return {"quick": _quick, "standard": _standard, "paper": _paper}[preset]()


def _quick() -> list[Experiment]:
    easier = (*mqar(16, 4, vocab_size=128), *mqar(32, 8, vocab_size=128))  # fewer pairs, shorter: learned sooner
    hard = mqar(96, 24, vocab_size=128)
    return [
        Experiment(
            "mqar",
            "MQAR, up to 96 tokens, 2 layers of width 64, 8 heads: accuracy by number of pairs",
            rows_of(*CORE, *STATE_SIZES),
            Setting(heads=8, steps=2400, batch=32, stop_at=0.999, examples=500),
            train=(*easier, *hard),
            test=(*easier, *mqar(64, 16, vocab_size=128), *hard, *mqar(128, 32, vocab_size=128)),
            learning_rates=(3e-3, 1e-2),
            axis="pairs",
            note="About 1 / pairs is the accuracy of knowing which values occurred but not their keys: a mixer there has "
            "not learned the task in these steps, which says nothing about the capacity of its state.",
        )
    ]


def _standard() -> list[Experiment]:
    by_pairs = Experiment(
        "mqar",
        "MQAR, 256 tokens, 2 layers of width 64, 8 heads: accuracy by number of pairs",
        rows_of(*CORE, *STATE_SIZES, *MORE),
        Setting(heads=8, steps=6000, batch=64, stop_at=0.995),
        train=mqar(256, 4, 8, 16, 32, 64, vocab_size=8192),
        test=mqar(256, 4, 8, 16, 24, 32, 48, 64, vocab_size=8192),
        learning_rates=(1e-3, 3e-3, 1e-2),
        axis="pairs",
        seeds=3,
    )
    lengths = (64, 128, 256, 512, 1024, 4096)
    induction = Experiment(
        "induction-heads",
        "Induction heads, trained at 256 tokens: accuracy by length",
        rows_of(*CORE, *MORE),
        Setting(steps=4000, batch=32, stop_at=0.999),
        train=(Problem("induction-heads", {"length": 256}),),
        test=tuple(Problem("induction-heads", {"length": length}) for length in lengths),
        learning_rates=(1e-3, 3e-3),
        axis="length",
        seeds=3,
    )
    copying = Experiment(
        "copying",
        "Copying a string, trained with 2 to 64 letters: exact copies by length",
        rows_of(*CORE, *MORE),
        Setting(width=128, layers=4, inner=256, steps=5000, batch=32),
        train=(Problem("copying"),),
        test=tuple(Problem("copying-long", {"shortest": size, "longest": size}) for size in (16, 64, 128, 256, 511)),
        learning_rates=(1e-3, 2e-3, 5e-3),
        axis="longest",
        metric="exact",
        seeds=3,
    )
    return [by_pairs, induction, copying]


def _paper() -> list[Experiment]:
    """The grid of DSF, and what MetaLA adds to it: 80 pairs."""
    shapes = ((64, 4, 512), (128, 8, 256), (256, 16, 128), (512, 64, 64), (512, 80, 64))
    return [
        _published_mqar(length, pairs, batch, width)
        for length, pairs, batch in shapes
        for width in ((64, 128) if pairs == 80 else (64, 128, 256, 512))
    ]


def _published_mqar(length: int, pairs: int, batch: int, width: int) -> Experiment:
    metala = {"softmax": "above 0.99", "s6": "0.000 (Mamba)", "metala": "0.285" if width == 64 else "0.904"}
    dsf = {"softmax": "perfect but at 512 tokens, width 64, keys of 32"}
    steps = 64 * 100_000 // batch
    return Experiment(
        f"mqar-{length}x{pairs}-d{width}",
        f"MQAR, {length} tokens, {pairs} pairs, width {width}",
        rows_of(*CORE, *MORE),
        Setting(width=width, heads=2, inner=4 * width, steps=steps, batch=batch, stop_at=0.99, examples=3000),
        train=mqar(length, pairs, vocab_size=8192),
        test=mqar(length, pairs, vocab_size=8192),
        learning_rates=(1e-4, 4.64e-4, 2.15e-3, 1e-2),
        axis="pairs",
        seeds=3,
        published=metala if pairs == 80 else dsf,
        source="MetaLA, arXiv 2411.10741" if pairs == 80 else "DSF, arXiv 2405.15731, in words",
    )
