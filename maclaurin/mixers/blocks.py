"""What surrounds a mechanism between its input and its output: convolution, skip and gate, the same for all mechanisms.

A comparison of published layers compares these as much as the mechanisms: Mamba-2 has a convolution of 4 taps, a skip and
a gate, 2Mamba a convolution of 2 taps, softmax attention none of them. `block="llama"` or `block="gated"` gives a mixer
with queries, keys and values the surroundings of Llama's attention or of Mamba-2; without it a mixer is as published.
"""

from __future__ import annotations

from typing import Any

from maclaurin.common.arguments import one_of

BLOCKS: dict[str, dict[str, Any]] = {
    "llama": {"conv_width": 0, "skip": False, "gate": False},
    "gated": {"conv_width": 4, "skip": True, "gate": True},
}


def block_options(block: str | None, *, own_gate: bool) -> dict[str, Any]:
    """The options that a block sets. A mechanism with an output gate of its own keeps that one."""
    if block is None:
        return {}
    one_of("block", block, tuple(BLOCKS))
    return {name: value for name, value in BLOCKS[block].items() if not (own_gate and name == "gate")}
