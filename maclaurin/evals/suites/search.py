"""The search for a winner of linear cost and constant state: candidates ranked by their loss on text, with recall beside it.

Successive halving (`halving.py`): the rungs of a preset say how much longer each one trains, with how many seeds, and which
share goes on. Softmax, FoX and Mamba-2 in the same block are references: they go through all rungs and take no place.
"""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.halving import Rung
from maclaurin.evals.suites.frontier import few_to_many, gated
from maclaurin.evals.suites.rows import no_paper, one

RUNGS = {
    "quick": (Rung(1, 1, 0.25), Rung(2, 1, 0.4, floor=0.5), Rung(4, 3, 0.0)),
    "standard": (Rung(1, 1, 0.5), Rung(2, 1, 0.4, floor=0.5), Rung(4, 3, 0.0, floor=0.9)),
}
REFERENCES = {"softmax": gated("softmax"), "fox": gated("fox"), "mamba2": one("mamba2", expand=1, d_state=128)}


def in_turn(*mixers: str, **options: dict[str, object]) -> Row:
    """Layers in turn, all in the gated block. options: by mixer, with _ for - and `second_order` for 2mamba."""
    own = {name: {"block": "gated", **options.get(_as_keyword(name), {})} for name in mixers}
    return Row(mixers, own)


def _as_keyword(mixer: str) -> str:
    return "second_order" if mixer == "2mamba" else mixer.replace("-", "_")


def second_order(**options: object) -> Row:
    return gated("2mamba", **options)


BOTH_ORDERS: dict[str, object] = {"order": [1, 2], "learn_order_weights": True, "norm": "output"}
THREE_ORDERS: dict[str, object] = {"order": [0, 1, 2], "learn_order_weights": True}
CANDIDATES = {
    "2mamba": second_order(),
    "mamba2s": gated("mamba2s"),
    "gla": gated("gla", key_dim=8),
    "gated-delta": gated("gated-delta"),
    "orders-1-2": second_order(order=[1, 2], learn_order_weights=True),
    "orders-1-2-output": second_order(**BOTH_ORDERS),
    "orders-0-1-2": second_order(**THREE_ORDERS),
    "near-16": second_order(near_window=16),
    "near-16-joint": second_order(near_window=16, near_norm="joint"),
    "2mamba+window": in_turn("2mamba", "sliding-window", sliding_window={"window": 32}),
    "window+2mamba": in_turn("sliding-window", "2mamba", sliding_window={"window": 32}),
    "2mamba+mamba2s": in_turn("2mamba", "mamba2s"),
    "2mamba+gated-delta": in_turn("2mamba", "gated-delta"),
    "2mamba-delta": gated("2mamba-delta"),
    "unit-keys": second_order(feature_map="cosine"),
    "qk-norm": second_order(qk_norm=True),
    "decay-per-channel": second_order(decay="channel"),
    "rope": second_order(rotary="rope"),
    "selective": second_order(rotary="selective"),
    "sum-output": second_order(norm="sum-output"),
    "silu-v": second_order(activation="silu-v"),
    "dt-on-values": second_order(value_discretization="dt"),
    "forget": second_order(decay="forget"),
    "keys-16": second_order(key_dim=16),
    # one set of keys for all heads, and heads by width: at the state of keys-16
    "shared-keys-16": second_order(shared_keys=True, key_dim=16),
    "heads-4": replace(second_order(key_dim=16), heads=4),
    "heads-2": replace(second_order(key_dim=16), heads=2),
}
# of what was best in the first rung: layers of the gated delta rule, several orders, an output norm, a forget gate
COMBINED = {
    "gated-delta+2mamba": in_turn("gated-delta", "2mamba"),
    "orders-1-2-output+gated-delta": in_turn("2mamba", "gated-delta", second_order=BOTH_ORDERS),
    "sum-output+gated-delta": in_turn("2mamba", "gated-delta", second_order={"norm": "sum-output"}),
    "orders-0-1-2+gated-delta": in_turn("2mamba", "gated-delta", second_order=THREE_ORDERS),
    "orders-0-1-2-output": second_order(**THREE_ORDERS, norm="sum-output"),
    "orders-0-1-2-forget": second_order(**THREE_ORDERS, decay="forget"),
    "orders-0-1-2-keys-16": second_order(**THREE_ORDERS, key_dim=16),
    "orders-1-2-output-forget": second_order(**BOTH_ORDERS, decay="forget"),
    "sum-output-forget": second_order(norm="sum-output", decay="forget"),
}
# more than two layers: one of softmax among eight has a state that grows, at an eighth of the price
DEEP = {"softmax-1-of-8": in_turn(*["2mamba"] * 7, "softmax")}


def search(preset: str) -> list[Experiment]:
    """Text, which ranks, and recall, which has a floor: those of the first rung."""
    no_paper("search", preset, "nobody has published it")
    quick = preset == "quick"
    rows = {**REFERENCES, **CANDIDATES, **COMBINED, **({} if quick else DEEP)}
    length = 256 if quick else 512
    recalled = few_to_many(16, 40) if quick else few_to_many(64, 512)
    size = Setting(heads=8, inner=256) if quick else Setting(heads=8, inner=256, width=128, layers=8)
    shape = "2 layers of width 64" if quick else "8 layers of width 128"
    text = Experiment(
        "text",
        f"Bytes of the standard library, {length} at a time, {shape}, 8 heads, gated blocks, equal parameters",
        rows,
        replace(size, steps=400, batch=4, examples=256) if quick else replace(size, steps=1000, batch=16),
        train=(Problem("text", {"length": length}),),
        test=(Problem("text", {"length": length, "split": "test"}),),
        learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3, 1e-2),
        reference=gated("softmax"),
        metric="loss",
    )
    recall = Experiment(
        "mqar",
        f"MQAR, {shape}, 8 heads, gated blocks, equal parameters: accuracy by number of pairs",
        rows,
        replace(size, steps=400, stop_at=0.999, examples=200) if quick else replace(size, steps=1500, stop_at=0.999),
        train=recalled,
        test=recalled[-2:],
        learning_rates=(3e-3, 1e-2) if quick else (1e-3, 3e-3, 1e-2),
        axis="pairs",
        reference=gated("softmax"),
    )
    return [text, recall]
