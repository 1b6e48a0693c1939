"""State for state: what recall and text gain from each byte of state, at equal parameters and in an equal block.

Every mechanism is in several sizes, and in the surroundings of Mamba-2 (`block="gated"`), which Mamba-2 has by itself. A
window of softmax has as many bytes as its tokens; all of softmax and FoX end the axis. Keys of second order with 64 channels
are in `standard` alone: at the lengths of `quick` their state would be larger than all keys and values.
"""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import mqar, no_paper, one

GATED = {"block": "gated"}

Families = dict[str, dict[str, Row]]  # by name, the sizes by name


def gated(name: str, **options: object) -> Row:
    return one(name, **GATED, **options)


def _keys(name: str, *sizes: int, **options: object) -> dict[str, Row]:
    """A mechanism with keys of so many channels per head."""
    return {f"k{size}": gated(name, key_dim=size, **options) for size in sizes}


def families(preset: str) -> Families:
    """Of 4 heads with 16 channels each."""
    quick = preset == "quick"
    first, windows = ((16, 64), (16, 64)) if quick else ((8, 16, 32, 64), (16, 64, 256))
    return {
        "2mamba": _keys("2mamba", *((8, 16, 32) if quick else (4, 8, 16, 32, 64))),
        "mamba2": {
            **{f"n{size}": one("mamba2", expand=1, d_state=size) for size in ((16, 128) if quick else (16, 64, 128, 256))},
            "n256x2": one("mamba2", expand=2, d_state=256),
        },
        "mamba2s": _keys("mamba2s", *first),
        "gla": _keys("gla", *first),
        "gated-delta": _keys("gated-delta", *first),
        "mlstm": _keys("mlstm", *first),
        "hedgehog": _keys("hedgehog", *first),
        "window": {f"w{size}": gated("sliding-window", window=size) for size in windows},
        "softmax": {"": gated("softmax")},
        "fox": {"": gated("fox")},
    }


def frontier(preset: str) -> list[Experiment]:
    no_paper("frontier", preset, "nobody has published it")
    sizes = families(preset)
    rows = {f"{family}-{size}" if size else family: row for family, own in sizes.items() for size, row in own.items()}
    of_family = {f"{family}-{size}" if size else family: family for family, own in sizes.items() for size in own}
    quick = preset == "quick"
    budget = "2 layers of width 64, 4 heads, gated blocks, equal parameters"
    length = 256 if quick else 1024
    text = Experiment(
        "text",
        f"Bytes of the standard library, {length} at a time, {budget}: loss against bytes of state",
        rows,
        Setting(inner=256, steps=400, batch=4, examples=256)
        if quick
        else Setting(inner=256, steps=4000, batch=16, examples=1000),
        train=(Problem("text", {"length": length}),),
        test=(Problem("text", {"length": length, "split": "test"}),),
        learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3, 1e-2),
        reference=gated("softmax"),
        metric="loss",
        seeds=1 if quick else 3,
        families=of_family,
    )
    pairs = ((32, 8), (64, 16), (128, 32)) if quick else ((64, 16), (128, 32), (256, 64), (512, 128))
    problems = tuple(problem for tokens, count in pairs for problem in mqar(tokens, count, vocab_size=128 if quick else 512))
    recall = Experiment(
        "mqar",
        f"MQAR, 4 tokens per pair, {budget}: accuracy against bytes of state",
        rows,
        Setting(inner=256, steps=500, batch=16, stop_at=0.999, examples=200)
        if quick
        else Setting(inner=256, steps=6000, batch=32, stop_at=0.999, examples=1000),
        train=problems,
        test=problems,
        learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3, 1e-2),
        axis="pairs",
        reference=gated("softmax"),
        seeds=1 if quick else 3,
        families=of_family,
    )
    return [recall, text]
