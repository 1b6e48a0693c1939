"""States as tensors with names, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from maclaurin.mixers.base import MixerState
from maclaurin.ops.fields import fields_of
from maclaurin.ops.states import ConvState, State


def rebuilt(like: State, tensors: Mapping[str, Tensor], prefix: str = "") -> State:
    """The state of the mechanism of `like` that has these tensors, by their dotted names; parts that have none are None."""
    values: dict[str, object] = {}
    for field in fields_of(type(like)):
        own, name = getattr(like, field.name), prefix + field.name
        if isinstance(own, State):
            values[field.name] = rebuilt(own, tensors, f"{name}.")
        else:
            values[field.name] = own if isinstance(own, str) else tensors.get(name)
    return type(like)(**values)


def ahead_parts(state: MixerState) -> dict[str, Tensor]:
    """What keys depend on beside their tokens: the last inputs of the convolution, and the position."""
    parts = {"conv": None if state.conv is None else state.conv.inputs, "position": state.position}
    return {name: part for name, part in parts.items() if part is not None}


def started(initial: MixerState, parts: Mapping[str, Tensor]) -> MixerState:
    """The initial state behind earlier tokens, but for the attention."""
    conv = initial.conv if initial.conv is None else ConvState(parts["conv"])
    return replace(initial, conv=conv, position=parts.get("position"))
