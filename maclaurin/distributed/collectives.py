"""Sums over the processes of a group that gradients pass through.

Where processes share the heads of a layer, everything before the heads is the same on all of them and so is everything
behind; in between each has its own part. `entering` and `leaving` are the two borders.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, distributed
from torch.autograd import Function

Group = distributed.ProcessGroup


def entering(x: Tensor, group: Group) -> Tensor:
    """x itself; its gradient is the sum of what all processes have found."""
    entered: Tensor = _Sums.apply(x, group, False, True)
    return entered


def leaving(x: Tensor, group: Group) -> Tensor:
    """The sum of x over the processes, which all of them go on with in the same way."""
    left: Tensor = _Sums.apply(x, group, True, False)
    return left


def within(x: Tensor, group: Group) -> Tensor:
    """The sum of x over the processes, where each goes on with it in its own way."""
    summed: Tensor = _Sums.apply(x, group, True, True)
    return summed


class _Sums(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, forward: bool, backward: bool) -> Tensor:
        ctx.group, ctx.backward_too = group, backward
        return _sum(x, group) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _sum(gradient, ctx.group) if ctx.backward_too else gradient, None, None, None


def _sum(x: Tensor, group: Group) -> Tensor:
    summed = x.detach().clone().contiguous()
    distributed.all_reduce(summed, group=group)
    return summed
