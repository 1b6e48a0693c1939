"""The suites: experiments as plain data.

`quick` is minutes on a laptop with two cores, `standard` hours, `paper` the published settings, where a paper has ones that
this package can train. Published figures stand in `published` and are never mixed with measured ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment

PRESETS = ("quick", "standard", "paper")


def _one(name: str, **options: object) -> Row:
    return Row((name,), {name: options} if options else {})


def _rows(*names: str) -> dict[str, Row]:
    return {name: OTHER_ROWS.get(name, _one(name)) for name in names}


SELECTIVE = {"rank": 16, "increments": "linear", "gate": "none", "bias": True, "theta": 1}  # for state tracking
QK_CONV = {"conv_width": 4, "activation": "silu"}

# rows that are no registered mixer with its defaults; all suites know them
OTHER_ROWS = {
    "softmax-conv": _one("softmax", conv_width=2),
    "linear-conv": _one("linear", conv_width=2),
    "mamba2": _one("mamba2", expand=1, d_state=8),  # the state of a first-order head of 8 channels
    "gla-conv": _one("gla", **QK_CONV),
    "gla-selective": _one("gla", rotary="selective", rotary_options=SELECTIVE, **QK_CONV),
    "softmax-selective": _one("softmax", rotary="selective", rotary_options=SELECTIVE, **QK_CONV),
    "linear-conv-keys16": _one("linear", conv_width=2, key_dim=16),
    "linear-conv-keys32": _one("linear", conv_width=2, key_dim=32),
    "2mamba-keys4": _one("2mamba", key_dim=4),
}
CORE = ("softmax", "softmax-conv", "linear", "linear-conv", "mamba2", "mamba2s", "2mamba", "2mamba-e")
STATE_SIZES = ("linear-conv-keys16", "linear-conv-keys32", "2mamba-keys4")
MORE = (
    "gla",
    "gated-delta",
    "2mamba-delta",
    "mlstm",
    "metala",
    "normalized",
    "s6",
    "ssd",
    "hedgehog",
    "luna",
)


def _mqar(length: int, *pairs: int, vocab_size: int = 512, power: float = 0.01) -> tuple[Problem, ...]:
    options = {"length": length, "vocab_size": vocab_size, "power": power}
    return tuple(Problem("mqar", {"pairs": count} | options) for count in pairs)


def recall(preset: str) -> list[Experiment]:
    """Recall of key-value pairs: how many fit into the state?"""
    if preset == "quick":
        return [
            Experiment(
                "mqar",
                "MQAR, 64 tokens, 2 layers of width 64, 8 heads: accuracy by number of pairs",
                _rows(*CORE, *STATE_SIZES),
                Setting(heads=8, steps=1500, batch=32, stop_at=0.995, examples=500),
                train=_mqar(64, 2, 4, 8, 16, vocab_size=128),
                test=_mqar(64, 2, 4, 8, 12, 16, vocab_size=128),
                learning_rates=(3e-3, 1e-2),
                axis="pairs",
            )
        ]
    if preset == "standard":
        mqar = Experiment(
            "mqar",
            "MQAR, 256 tokens, 2 layers of width 64, 8 heads: accuracy by number of pairs",
            _rows(*CORE, *STATE_SIZES, *MORE),
            Setting(heads=8, steps=6000, batch=64, stop_at=0.995),
            train=_mqar(256, 4, 8, 16, 32, 64, vocab_size=8192),
            test=_mqar(256, 4, 8, 16, 24, 32, 48, 64, vocab_size=8192),
            learning_rates=(1e-3, 3e-3, 1e-2),
            axis="pairs",
            seeds=3,
        )
        lengths = (64, 128, 256, 512, 1024, 4096)
        induction = Experiment(
            "induction-heads",
            "Induction heads, trained at 256 tokens: accuracy by length",
            _rows(*CORE, *MORE),
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
            _rows(*CORE, *MORE),
            Setting(width=128, layers=4, inner=256, steps=5000, batch=32),
            train=(Problem("copying"),),
            test=tuple(Problem("copying-long", {"shortest": size, "longest": size}) for size in (16, 64, 128, 256, 511)),
            learning_rates=(1e-3, 2e-3, 5e-3),
            axis="longest",
            metric="exact",
            seeds=3,
        )
        return [mqar, induction, copying]
    found = []
    for length, pairs, batch in ((64, 4, 512), (128, 8, 256), (256, 16, 128), (512, 64, 64), (512, 80, 64)):
        for width in (64, 128) if pairs == 80 else (64, 128, 256, 512):
            metala = {"softmax": "above 0.99", "s6": "0.000 (Mamba)", "metala": "0.285" if width == 64 else "0.904"}
            all_but = {"softmax": "perfect but at 512 tokens, width 64, keys of 32"}
            found.append(
                Experiment(
                    f"mqar-{length}x{pairs}-d{width}",
                    f"MQAR, {length} tokens, {pairs} pairs, width {width}",
                    _rows(*CORE, *MORE),
                    Setting(
                        width=width,
                        heads=2,
                        inner=4 * width,
                        steps=64 * 100_000 // batch,
                        batch=batch,
                        stop_at=0.99,
                        examples=3000,
                    ),
                    train=_mqar(length, pairs, vocab_size=8192),
                    test=_mqar(length, pairs, vocab_size=8192),
                    learning_rates=(1e-4, 4.64e-4, 2.15e-3, 1e-2),
                    axis="pairs",
                    seeds=3,
                    published=metala if pairs == 80 else all_but,
                    source="MetaLA, arXiv 2411.10741" if pairs == 80 else "DSF, arXiv 2405.15731, in words",
                )
            )
    return found


def track(preset: str) -> list[Experiment]:
    """State tracking: the product of all moves so far, at lengths never trained on."""
    published = {
        "gla-selective": "solves it and extrapolates",
        "softmax-selective": "solves it",
        "softmax": "does not solve it",
    }
    parity = Experiment(
        "parity",
        "Parity of the bits so far, one layer, trained at 64 tokens: share of right answers by length",
        _rows("gla-selective", "gla-conv", "softmax-selective", "softmax", "mlstm", "qlstm"),
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
                rows=_rows(*parity.rows, "gated-delta", "mamba2s", "2mamba"),
                train=(Problem("state-tracking", {"group": group, "length": 128}),),
                test=tuple(Problem("state-tracking", {"group": group, "length": n}) for n in (64, 128, 256, 512)),
                learning_rates=(1e-4, 1e-3, 1e-2) if preset == "paper" else (1e-3, 3e-3, 1e-2),
                seeds=5 if preset == "paper" else 3,
                published=published if group == "parity" else {},
            )
        )
    return found


def needle(preset: str) -> list[Experiment]:
    """The pass key of the thesis, byte by byte: depth by length, beyond the lengths trained on."""
    _no_paper("needle", preset, "the published needles are those of language models of 400,000 steps")
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    lengths = (128, 256, 512, 1024, 2048) if preset == "quick" else (256, 512, 1024, 2048, 4096, 8192)
    names = ("softmax", "mamba2s", "2mamba") if preset == "quick" else (*CORE, "gla", "gated-delta", "mlstm")
    quick = Setting(width=64, heads=4, steps=800, batch=16, stop_at=0.999, examples=40)
    standard = Setting(width=128, heads=4, layers=4, inner=256, steps=6000, batch=16, stop_at=0.999, examples=100)
    return [
        Experiment(
            "passkey",
            "A pass key in a long text, byte by byte: keys said without a mistake, by length and depth",
            _rows(*names),
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


def lra(preset: str) -> list[Experiment]:
    """Tasks of the Long Range Arena, one answer a sequence."""
    names = CORE if preset == "quick" else (*CORE, *MORE)
    source = "MetaLA, arXiv 2411.10741, the Arena's full size"
    listops = Experiment(
        "listops",
        "ListOps, small: 16 to 128 tokens, depth 4, 5 arguments",
        _rows(*names),
        Setting(model="classifier", steps=1000, batch=32, examples=1000),
        train=(Problem("listops", {"longest": 128, "shortest": 16, "depth": 4, "arguments": 5}),),
        test=(Problem("listops", {"longest": 128, "shortest": 16, "depth": 4, "arguments": 5}),),
        learning_rates=(1e-3, 3e-3),
        published={"metala": "0.5934"},
        source=source,
    )
    pathfinder = replace(
        listops,
        name="pathfinder",
        title="Pathfinder, small: 24x24 pixels read one by one, 3 dashes",
        setting=replace(listops.setting, steps=500, batch=16, examples=500),
        train=(Problem("pathfinder", {"size": 24, "dashes": 3}),),
        test=(Problem("pathfinder", {"size": 24, "dashes": 3}),),
        published={"metala": "0.9166"},
    )
    if preset == "quick":
        return [listops]
    if preset == "standard":
        larger = replace(listops.setting, layers=4, width=128, inner=256, steps=10_000)
        return [replace(experiment, setting=larger, seeds=3) for experiment in (listops, pathfinder)]
    paper = []
    # width, layers, MLP, learning rate and batch of MetaLA's runs; how many steps is not known
    for name, title, width, layers, inner, rate, batch, figure in (
        ("listops", "ListOps", 32, 6, 64, 5e-4, 128, "0.5934"),
        ("imdb", "Text", 128, 4, 256, 4e-3, 64, "0.8927"),
        ("cifar10", "Image", 512, 6, 512, 3e-3, 128, "0.9188"),
        ("pathfinder", "Pathfinder", 128, 6, 128, 2e-3, 256, "0.9166"),
    ):
        test = Problem(name, {"split": "test"} if name in ("imdb", "cifar10") else {})
        paper.append(
            replace(
                listops,
                name=name,
                title=f"{title} of the Long Range Arena",
                setting=Setting("classifier", width, 4, layers, inner, steps=50_000, batch=batch, examples=2000),
                train=(Problem(name),),
                test=(test,),
                learning_rates=(rate,),
                seeds=3,
                published={"metala": figure},
            )
        )
    return paper


def vision(preset: str) -> list[Experiment]:
    """Handwritten digits: InLine, what is left without its parts, linear attention and softmax, at an equal size."""
    _no_paper("vision", preset, "the published models are trained on ImageNet, which is not here")
    rows = {
        "softmax": _one("softmax"),
        "linear": _one("linear"),
        "inline": _one("inline"),
        "inline-no-residual": _one("inline", local_residual=False),
        "inline-relu": _one("inline", feature_map="relu"),
        "inline-relu-no-residual": _one("inline", feature_map="relu", local_residual=False),
        "inline-leaky-relu": _one("inline", feature_map="leaky-relu"),
        "inline-exp": _one("inline", feature_map="exp"),
    }
    return [
        Experiment(
            "digits",
            "Handwritten digits, 8x8 pixels as 64 tokens, 2 layers of width 32, 2 heads",
            rows,
            Setting("vision", 32, 2, 2, 64, steps=1000 if preset == "quick" else 4000, batch=32, weight_decay=0.05),
            train=(Problem("digits"),),
            test=(Problem("digits", {"split": "test"}),),
            learning_rates=(3e-3,) if preset == "quick" else (1e-3, 3e-3, 1e-2),
            seeds=5,
            published=dict.fromkeys(("inline", "inline-relu"), "above linear with each kernel; the residual helps"),
            source="InLine, arXiv 2412.06590, in words: Swin-T on ImageNet",
        )
    ]


def swax(preset: str) -> list[Experiment]:
    """Sliding windows beside an mLSTM: does a shorter window in training make recall reach further?"""
    _no_paper("swax", preset, "the published models have 1.4 billion parameters")

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
            train=_mqar(length, 16, power=0.5),
            test=(*_mqar(length, 16, power=0.5), *_mqar(2 * length, 16, power=0.5)),
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


def _no_paper(suite: str, preset: str, why: str) -> None:
    if preset == "paper":
        raise ValueError(f"suite {suite!r} has no preset 'paper': {why}; choose 'quick' or 'standard'")


SUITES: dict[str, Callable[[str], list[Experiment]]] = {
    "recall": recall,
    "track": track,
    "needle": needle,
    "lra": lra,
    "vision": vision,
    "swax": swax,
}
