"""The models that all suites know: registered mixers by their names, and others with options."""

from __future__ import annotations

from maclaurin.evals.cells import Problem, Row


def one(name: str, **options: object) -> Row:
    return Row((name,), {name: options} if options else {})


def rows_of(*names: str) -> dict[str, Row]:
    return {name: OTHER_ROWS.get(name, one(name)) for name in names}


# Selective RoPE for state tracking, as published, with a convolution over q, k and v,
SELECTIVE_PUBLISHED = {"rank": 32, "increments": "linear", "gate": "none", "bias": True, "theta": 1}
# and as it is learned here in a minute: a temperature of 10 on a convolution that starts as the token itself spreads the
# first angles over a few radians, so that one of many planes starts near a half turn for one and near none for zero. From
# angles of a few tenths over four tokens (temperature 60 on the published convolution) one of three seeds did not get there.
SELECTIVE = {"increments": "linear", "gate": "none", "theta": 1, "temp_max": 10, "identity_conv": True}
# and for copying
SELECTIVE_COPYING = {"rank": 32, "increments": "difference", "temperature": "rfa", "temp_max": 0.25}
QK_CONV = {"conv_width": 4, "activation": "silu"}

# models that are not a registered mixer with its defaults; all suites know them
OTHER_ROWS = {
    "softmax-conv": one("softmax", conv_width=2),
    "linear-conv": one("linear", conv_width=2),
    "mamba2": one("mamba2", expand=1, d_state=8),  # the state of a first-order head of 8 channels
    "gla-conv": one("gla", **QK_CONV),
    "gla-selective": one("gla", rotary="selective", rotary_options=SELECTIVE),
    "gla-selective-conv": one("gla", rotary="selective", rotary_options=SELECTIVE_PUBLISHED, **QK_CONV),
    "softmax-selective": one("softmax", rotary="selective", rotary_options=SELECTIVE),
    "linear-conv-keys4": one("linear", conv_width=2, key_dim=4),
    "linear-conv-keys16": one("linear", conv_width=2, key_dim=16),
    "2mamba-keys4": one("2mamba", key_dim=4),
}
CORE = ("softmax", "softmax-conv", "linear", "linear-conv", "mamba2", "mamba2s", "2mamba", "2mamba-e")
STATE_SIZES = ("linear-conv-keys4", "linear-conv-keys16", "2mamba-keys4")
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


def mqar(length: int, *pairs: int, vocab_size: int = 512, power: float = 0.01) -> tuple[Problem, ...]:
    options = {"length": length, "vocab_size": vocab_size, "power": power}
    return tuple(Problem("mqar", {"pairs": count} | options) for count in pairs)


def no_paper(suite: str, preset: str, why: str) -> None:
    if preset == "paper":
        raise ValueError(f"suite {suite!r} has no preset 'paper': {why}; choose 'quick' or 'standard'")
