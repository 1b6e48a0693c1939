"""State for state: what recall and text gain from each byte of state, at equal parameters and in an equal block.

Every mechanism is in several sizes, and in the surroundings of Mamba-2 (`block="gated"`), which Mamba-2 has by itself.
Mamba-2 and windows of softmax have sizes with about the bytes of the second-order states; softmax and FoX keep all tokens.
Keys of 64 channels are shared by all heads, as Mamba-2 shares its own: 64 for each head would be the whole model.
"""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import mqar, no_paper, one

GATED = {"block": "gated"}
UNTUNED = "One seed and one learning rate for all: which of two neighbours is better, it does not say; `standard` does."

Families = dict[str, dict[str, Row]]  # by name, the sizes by name


def gated(name: str, **options: object) -> Row:
    return one(name, **GATED, **options)


def _keys(name: str, *sizes: int, **options: object) -> dict[str, Row]:
    """A mechanism with keys of so many channels per head."""
    return {f"k{size}": gated(name, key_dim=size, **options) for size in sizes}


def families(preset: str) -> Families:
    """Of 8 heads with 8 channels each."""
    quick = preset == "quick"
    first, second = ((8, 32), (8, 16, 32)) if quick else ((8, 16, 32, 64), (4, 8, 16, 32, 64))
    spaces, windows = ((16, 48, 160), (24, 88)) if quick else ((16, 48, 160, 256), (8, 24, 88, 256))
    return {
        **{name: _keys(name, *second) for name in ("2mamba", "2mamba-orders")},
        "2mamba-shared": {"k64": gated("2mamba", key_dim=64, shared_keys=True)},
        "mamba2": {
            **{f"n{size}": one("mamba2", expand=1, d_state=size) for size in spaces},
            "n256x2": one("mamba2", expand=2, d_state=256),  # a larger one would be the whole model
        },
        **{name: _keys(name, *first) for name in ("mamba2s", "gla", "gated-delta", "mlstm", "hedgehog")},
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
    # wide enough MLPs that the largest mixer leaves some of them at equal parameters
    size = Setting(heads=8, inner=256 if quick else 384)
    shape = "2 layers of width 64, 8 heads, gated blocks, equal parameters"
    length = 256 if quick else 1024
    text = Experiment(
        "text",
        f"Bytes of the standard library, {length} at a time, {shape}: loss against bytes of state",
        rows,
        replace(size, steps=400, batch=4, examples=256) if quick else replace(size, steps=4000, batch=16),
        train=(Problem("text", {"length": length}),),
        test=(Problem("text", {"length": length, "split": "test"}),),
        learning_rates=(1e-2,) if quick else (1e-3, 3e-3, 1e-2),
        reference=gated("softmax"),
        metric="loss",
        seeds=1 if quick else 3,
        families=of_family,
        note=UNTUNED if quick else "",
    )
    recall = Experiment(
        "mqar",
        f"MQAR, 4 tokens per pair, {shape}: accuracy against bytes of state",
        rows,
        replace(size, steps=800, stop_at=0.999, examples=200) if quick else replace(size, steps=6000, stop_at=0.999),
        train=few_to_many(24, 52) if quick else few_to_many(128, 512),
        test=few_to_many(24, 52)[-2:] if quick else few_to_many(128, 512)[-4:],
        learning_rates=(1e-2,) if quick else (1e-3, 3e-3, 1e-2),
        axis="pairs",
        reference=gated("softmax"),
        seeds=1 if quick else 3,
        families=of_family,
        note=UNTUNED if quick else "",
    )
    return [recall, text]


def few_to_many(most: int, vocab_size: int) -> tuple[Problem, ...]:
    """MQAR with 2, 4, 8, … `most` pairs in the shortest sequences that hold them: the easy ones are learned first."""
    counts = [*(2**power for power in range(1, (most - 1).bit_length())), most]
    return tuple(problem for count in counts for problem in mqar(4 * count, count, vocab_size=vocab_size))
