"""Prompts of any lengths through one layer, each from its own state."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maclaurin.mixers import Mixer, MixerState
from maclaurin.mixers.base import AT_ONCE
from maclaurin.ops.packed import Packed
from maclaurin.serving.slots import known


def read_prompts(
    mixer: Mixer, x_1ND: Tensor, states: list[MixerState | None], lengths: list[int]
) -> tuple[Tensor, list[MixerState]]:
    """x: the new tokens of all sequences, one behind another, then perhaps some of nobody. States do not change."""
    if mixer.packs and len(lengths) > 1:
        y_1ND, after = mixer.mix(x_1ND, _packed(mixer, states, lengths), AT_ONCE)
        assert after is not None
        return y_1ND, _apart(after, len(lengths))
    before = [state if state is None else known(state, mixer.trust) for state in states]
    y_1ND, one_by_one = Packed.of(before, lengths).over(mixer, x_1ND)
    return y_1ND, one_by_one.states


def _packed(mixer: Mixer, states: list[MixerState | None], lengths: list[int]) -> MixerState:
    conv: Any = None
    if mixer.shapes().conv is not None:
        conv = Packed.of([None if state is None else state.conv for state in states], lengths)
    attention = Packed.of([None if state is None else state.attention for state in states], lengths)
    return MixerState(attention, conv, kind=mixer.kind)


def _apart(after: Any, count: int) -> list[MixerState]:
    convs = [None] * count if after.conv is None else after.conv.states
    return [
        MixerState(attention, conv, kind=after.kind) for attention, conv in zip(after.attention.states, convs, strict=True)
    ]
