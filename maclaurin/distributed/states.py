"""A state as a list of tensors with a description, and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from maclaurin.ops.fields import fields_of
from maclaurin.ops.states import State


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
