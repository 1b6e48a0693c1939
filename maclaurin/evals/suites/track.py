"""State tracking: the product of all moves so far, at lengths never trained on."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import SOFTMAX, Experiment
from maclaurin.evals.suites.rows import QK_CONV, SELECTIVE, SELECTIVE_PUBLISHED, one, rows_of

PUBLISHED = {
    "gla-selective-conv": "solves it and extrapolates",
    "softmax-selective-published": "solves it",
    "softmax": "does not solve it",
}

# Parity is a half turn for every one. More planes are more chances that one starts near it: keys of 32 channels, with
# rotations and without. What is added at a one must last: at the start the decay is 0.9993 per token (tau = 1000); with the
# published tau = 16 half of it is gone after 16 tokens.
KEYS = {"key_dim": 32}
OWN_ROWS = {
    "gla-selective": one("gla", rotary="selective", rotary_options=SELECTIVE, tau=1000.0, **KEYS),
    "gla": one("gla", tau=1000.0, **KEYS),
    "mlstm": one("mlstm", **KEYS),
}
# the published setting: keys as wide as the heads, a convolution over q, k and v of gla, none in front of softmax
PUBLISHED_ROWS = {
    "gla-selective-conv": one("gla", rotary="selective", rotary_options=SELECTIVE_PUBLISHED, **KEYS, **QK_CONV),
    "gla-conv": one("gla", **KEYS, **QK_CONV),
    "softmax-selective-published": one("softmax", rotary="selective", rotary_options=SELECTIVE_PUBLISHED),
}
GROUPS = {"parity": 1, "Z5": 1, "A3": 2, "S3": 2, "A5": 2, "S5": 2}  # and how many layers follow their moves
OTHERS = ("gated-delta", "mamba2s", "2mamba")


def track(preset: str) -> list[Experiment]:
    if preset == "quick":
        return [_parity()]
    of_group = _as_published if preset == "paper" else _standard
    return [of_group(group, layers) for group, layers in GROUPS.items()]


def _parity() -> Experiment:
    return Experiment(
        "parity",
        "Parity of the bits so far, one layer, trained at 8 to 64 tokens: share of right answers by length",
        rows_of("gla-selective", "gla", "softmax-selective", "softmax", "mlstm", "qlstm") | OWN_ROWS,
        Setting(
            width=32,
            heads=2,
            layers=1,
            inner=16,
            steps=400,
            batch=64,
            stop_at=0.999,
            examples=200,
            embedding_std=0.5,
            label_smoothing=0.1,
        ),
        train=_moves("parity", 8, 16, 32, 64),
        test=_moves("parity", 32, 64, 128, 256, 512),
        # An angle that is wrong by a hundredth costs nothing at the trained lengths, where the norm of a head's output hides
        # all but its sign, and everything at four times as many tokens. So validation asks for lengths that are neither
        # trained nor tested; the authors' code looks at the test's own after every epoch, and ends there, too.
        validate=_moves("parity", 64, 384),
        learning_rates=(1e-3, 3e-3),
        axis="length",
        reference=Row(("qlstm",)),  # the heaviest mixer: the MLPs of all others are wide enough to make up for its gates
        seeds=3,
        published={"softmax": PUBLISHED["softmax"]},
        source="Selective RoPE, arXiv 2511.17388, in words: 1 layer, width 384, trained at 128, tested at 512",
        note="Validation, which chooses the learning rate and the weights of a run that are kept, has the longest trained "
        "length and one of 384 tokens, which no test has.",
    )


def _standard(group: str, layers: int) -> Experiment:
    parity = _parity()
    size = replace(parity.setting, width=128, heads=4, inner=64, steps=6000, batch=128, examples=1000)
    experiment = replace(
        parity,
        rows=rows_of(*parity.rows, "gla-selective-conv", *OTHERS) | OWN_ROWS,
        setting=replace(size, layers=layers),
        train=_moves(group, 16, 128),
        validate=_moves(group, 128, 384),
        learning_rates=(1e-3, 3e-3, 1e-2),
    )
    return _of_group(experiment, group)


def _as_published(group: str, layers: int) -> Experiment:
    experiment = replace(
        _parity(),
        rows=PUBLISHED_ROWS | rows_of("softmax", "mlstm", "qlstm", *OTHERS),
        setting=Setting(
            width=384, heads=12, layers=layers, inner=768, steps=10_000, batch=1024, weight_decay=1e-6, stop_at=0.99
        ),
        reference=SOFTMAX,  # published sizes are softmax's, which qlstm exceeds
        train=_moves(group, 128),
        validate=_moves(group, 512),
        learning_rates=(1e-4, 1e-3, 1e-2),
        seeds=5,
        note="",
    )
    return _of_group(experiment, group)


def _of_group(experiment: Experiment, group: str) -> Experiment:
    """Named for its group, tested on it, and beside what is published of it."""
    is_parity = group == "parity"
    layers = experiment.setting.layers
    return replace(
        experiment,
        name=group if is_parity else f"track-{group}",
        title=f"{group}: the product of all moves so far, {layers} layers, trained at up to 128 tokens",
        test=_moves(group, 64, 128, 256, 512),
        published={row: words for row, words in PUBLISHED.items() if row in experiment.rows} if is_parity else {},
    )


def _moves(group: str, *lengths: int) -> tuple[Problem, ...]:
    return tuple(Problem("state-tracking", {"group": group, "length": length}) for length in lengths)
