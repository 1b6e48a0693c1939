"""What the files of old states were made of: mixers with weights and inputs by formula, which no random generator decides.

`make.py` runs this with the code that the files are of, `test_old_files.py` with today's: only `build_mixer` is called.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH, HEADS, BEFORE, AFTER = 2, 8, 2, 6, 3
FOLDS = {"fold_at": 3, "fold_every": 2}


@dataclass(frozen=True)
class Case:
    """padding: tokens on the left of the first row that are none."""

    mixer: str
    options: dict[str, Any] = field(default_factory=dict)
    padding: int = 0

    def build(self) -> Any:
        from maclaurin import build_mixer

        mixer = build_mixer(self.mixer, WIDTH, HEADS, **self.options).eval()
        with torch.no_grad():
            for name, weight in mixer.state_dict().items():
                weight.copy_(0.5 * _wave(weight.shape, zlib.crc32(name.encode()) % 1000))
        return mixer

    def mask(self) -> Tensor | None:
        if not self.padding:
            return None
        mask = torch.ones(ROWS, BEFORE, dtype=torch.long)
        mask[0, : self.padding] = 0
        return mask


def before() -> Tensor:
    """The tokens that a state was made from."""
    return _wave((ROWS, BEFORE, WIDTH), 1)


def after() -> Tensor:
    """The tokens that follow them."""
    return _wave((ROWS, AFTER, WIDTH), 2)


def _wave(shape: tuple[int, ...], phase: int) -> Tensor:
    count = torch.Size(shape).numel()
    return (1.7 * torch.arange(count, dtype=torch.float64) + phase).sin().view(shape).float()


CASES = {
    "2mamba-unfolded": Case("2mamba"),
    "2mamba-folded": Case("2mamba", FOLDS),
    "2mamba-padded": Case("2mamba", padding=2),
    "2mamba-folded-padded": Case("2mamba", FOLDS, padding=2),
    "2mamba-near-window": Case("2mamba", {"near_window": 2, **FOLDS}),
    "2mamba-output-norm": Case("2mamba", {"norm": "output", "rotary": "rope", "num_kv_heads": 1, **FOLDS}),
    "2mamba-e": Case("2mamba-e"),
    "2mamba-delta": Case("2mamba-delta"),
    "taylor-folded": Case("taylor", FOLDS),
    "linear": Case("linear"),
    "linear-near-window": Case("linear", {"near_window": 2}),
    "linear-selective-rope": Case("linear", {"rotary": "selective"}),
    "mamba2s": Case("mamba2s", {"rotary": "rope"}),
    "mamba2": Case("mamba2", {"d_state": 4}),
    "ssd": Case("ssd", {"d_state": 4}),
    "gla": Case("gla", {"decay_rank": 2}),
    "metala": Case("metala", {"aug": "linear"}),
    "hedgehog": Case("hedgehog"),
    "performer": Case("performer", {"num_features": 8}),
    "luna": Case("luna", {"num_features": 8, "num_channels": 2, "channel_width": 4}),
    "normalized": Case("normalized", {"eta": "sigmoid"}),
    "softmax": Case("softmax"),
    "softmax-padded": Case("softmax", padding=2),
    "sliding-window": Case("sliding-window", {"window": 3}),
    "fox": Case("fox"),
    "gated-softmax": Case("gated-softmax"),
    "gated-softmax-cumulative-gate": Case("gated-softmax", {"divisor": "cumulative-gate"}),
    "delta": Case("delta"),
    "gated-delta": Case("gated-delta"),
    "mlstm": Case("mlstm"),
    "mlstm-sigmoid": Case("mlstm", {"input_gate": "sigmoid"}),
    "qlstm": Case("qlstm"),
    "rglru": Case("rglru"),
    "s6": Case("s6", {"d_state": 4}),
    "inline": Case("inline"),
    "inline-without-residual": Case("inline", {"local_residual": False}),
}
# of these there are also files from before states named the mixers that they belong to
NAMELESS = ("2mamba-unfolded", "2mamba-folded", "2mamba-folded-padded", "linear", "gla", "softmax-padded", "delta", "mlstm")


def suite():
    """An experiment whose third row fails."""
    from maclaurin.evals.cells import Problem, Row, Setting
    from maclaurin.evals.experiment import Experiment

    tests = tuple(Problem("mqar", {"length": 32, "pairs": pairs, "vocab_size": 16}) for pairs in (2, 4))
    rows = {"softmax": Row(("softmax",)), "linear": Row(("linear",), {"linear": {"conv_width": 2}}), "gla": Row(("gla",))}
    return Experiment(
        "mqar",
        "MQAR, small",
        rows,
        Setting(width=16, heads=2, layers=1, inner=16, steps=4, batch=4, examples=10),
        train=tests,
        test=tests,
        learning_rates=(1e-3,),
        validate=tests[:1],
        axis="pairs",
        seeds=2,
        against={"linear": "softmax"},
        published={"softmax": "1.000"},
        source="a paper",
        note="Small.",
    )
