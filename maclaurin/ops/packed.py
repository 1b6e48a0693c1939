"""Sequences one behind another, (1, N, ...): what a layer does token by token is done for all of them at once, and what
looks back goes on from the state of each. Nothing is padded, and no states are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from maclaurin.ops.states import StandIn


class Packed(StandIn):
    """Stands for the states of all sequences, None where one begins."""

    states: ClassVar[list[Any]]  # of each one; not a field
    lengths: ClassVar[list[int]]  # of their new tokens

    @classmethod
    def of(cls, states: Sequence[Any], lengths: Sequence[int]) -> Packed:
        packed = cls()
        object.__setattr__(packed, "states", list(states))
        object.__setattr__(packed, "lengths", list(lengths))
        return packed

    def over(self, op: Callable[..., tuple[Tensor, Any]], *tensors: Tensor | None) -> tuple[Tensor, Packed]:
        """y (1, N, ...) and the states behind all tokens. op(*tensors, state) is that of one sequence. What stands behind
        the last one belongs to nobody: it is not looked at, and y is zero there."""
        outputs, after = [], []
        for state, (begin, end) in zip(self.states, pairwise(accumulate(self.lengths, initial=0)), strict=True):
            y, new = op(*(None if x is None else x[:, begin:end] for x in tensors), state)
            outputs.append(y)
            after.append(new)
        rest = next(x.shape[1] for x in tensors if x is not None) - sum(self.lengths)
        if rest:
            outputs.append(outputs[0].new_zeros(1, rest, *outputs[0].shape[2:]))
        return torch.cat(outputs, 1), Packed.of(after, self.lengths)
