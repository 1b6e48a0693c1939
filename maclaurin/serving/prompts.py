"""Prompts of any lengths through one layer, each from its own state."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.mixers import Mixer, MixerState
from maclaurin.mixers.base import AT_ONCE
from maclaurin.ops.packed import Packed
from maclaurin.serving.slots import known


def read_prompts(
    mixer: Mixer, x_1ND: Tensor, states: list[MixerState | None], lengths: list[int]
) -> tuple[Tensor, list[MixerState]]:
    """x: the new tokens of all sequences, one behind another. Neither they nor their states are changed."""
    if len(lengths) == 1 or not mixer.packs:
        bounds = pairwise(accumulate(lengths, initial=0))
        before = [state if state is None else known(state, mixer.trust) for state in states]
        found = [mixer(x_1ND[:, begin:end], state) for (begin, end), state in zip(bounds, before, strict=True)]
        return torch.cat([y for y, _ in found], 1), [state for _, state in found]
    y_1ND, after = mixer.mix(x_1ND, _packed(mixer, states, lengths), AT_ONCE)
    assert after is not None
    return y_1ND, _apart(after, len(lengths))


def _packed(mixer: Mixer, states: list[MixerState | None], lengths: list[int]) -> MixerState:
    conv: Any = None
    if mixer.shapes().conv is not None:
        conv = Packed.of([None if state is None else state.conv for state in states], lengths)
    attention = Packed.of([None if state is None else state.attention for state in states], lengths)
    return MixerState(attention, conv, kind=mixer.kind)


def _apart(after: Any, count: int) -> list[MixerState]:
    convs = [None] * count if after.conv is None else after.conv.states
    return [MixerState(attention, conv, kind=after.kind) for attention, conv in zip(after.attention.states, convs, strict=True)]
