"""States with one thing wrong in them, for tests of what refuses them."""

import dataclasses

import torch
from torch import Tensor

from maclaurin.ops.states import ConvState, State


def narrowed(tensor, dim):
    return tensor.narrow(dim, 0, tensor.shape[dim] - 1) if tensor.shape[dim] else None


def widened(tensor, dim):
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :])], dim)


def lies(state):
    """The state with one thing changed in one field, and what was changed."""
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, State):
            for what, nested in lies(value):
                yield f"{field.name}.{what}", dataclasses.replace(state, **{field.name: nested})
            changes = {"a tensor": torch.zeros(2, 3), "another state": ConvState(torch.zeros(2, 1, 1)), "None": None}
        elif isinstance(value, Tensor):
            changes = {
                "no tensor": value.tolist(),
                "None": None,
                "a state": ConvState(torch.zeros(2, 1, 1)),
                "complex": value.to(torch.complex64),
                "whole numbers or not": value.float() if value.dtype == torch.int64 else value.long(),
                "bool": value.bool(),
                "meta": value.to("meta"),
                "one dimension more": value[..., None],
                "one dimension less": value[..., 0] if value.numel() else None,
            }
            for dim in range(value.dim()):
                changes[f"{dim} narrower"], changes[f"{dim} wider"] = narrowed(value, dim), widened(value, dim)
        else:
            changes = {"a tensor": torch.zeros(2, 3), "a list": [1, 2], "a state": ConvState(torch.zeros(2, 1, 1))}
        for what, changed in changes.items():
            if not (changed is None and what != "None"):
                yield f"{field.name}: {what}", dataclasses.replace(state, **{field.name: changed})


def refusal(function, *arguments, **options):
    """Whether the call was refused, in one sentence about the state."""
    try:
        function(*arguments, **options)
    except (ValueError, TypeError) as error:
        return "state" in str(error) and "\n" not in str(error)
    return False
