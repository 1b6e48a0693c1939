"""Small sums that several ops share. The oracle has its own, so that an error here shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops.native.nan import any_nan
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.transforms import has_numbers, is_transformed, numbers

P = ParamSpec("P")
R = TypeVar("R")
_WIDE = (torch.float32, torch.float64)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator; 0 where the denominator is 0, or so small (1e-30 in float32) that gradients overflow."""
    nothing = denominator.abs() < torch.finfo(denominator.dtype).tiny ** 0.8
    return torch.where(nothing, torch.zeros_like(numerator), numerator / denominator.masked_fill(nothing, 1))


def wide(x: Tensor) -> Tensor:
    """In float32 at least: sums, exponents, and what is divided by its own size need more digits than bfloat16 has, and
    smaller numbers than float16."""
    return x if x.dtype in _WIDE else x.to(torch.float32)  # a decoding step asks often, and usually for nothing


def has_nan(x: Tensor) -> bool:
    """False where there are no numbers to look at."""
    if not has_numbers(x):
        return False
    if (found := any_nan(x)) is not None:
        return found
    x = numbers(x)
    return math.isnan(x.sum().item()) and bool(x.isnan().any())  # +inf and -inf make a NaN of the sum alone


def repeat_heads(x_BTGK: Tensor, heads: int) -> Tensor:
    """Each key-value head serves heads/G query heads that stand next to each other."""
    if x_BTGK.shape[2] == 1:
        return x_BTGK.expand(-1, -1, heads, *x_BTGK.shape[3:])  # one for all needs no copies
    return x_BTGK if x_BTGK.shape[2] == heads else x_BTGK.repeat_interleave(heads // x_BTGK.shape[2], dim=2)


def default_scale(scale: float | None, q: Tensor) -> float:
    """1/√channels unless given."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def without_autocast(op: Callable[P, R]) -> Callable[P, R]:
    """Autocast is for a model's linear layers: inside an op it would round the sums that must be float32 to bfloat16."""

    @wraps(op)
    def protected(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = (x for group in args for x in (group if isinstance(group, tuple) else (group,)) if isinstance(x, Tensor))
        device = next((x.device.type for x in tensors), "cpu")
        if device == "meta" or not torch.is_autocast_enabled(device):
            return op(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return op(*args, **kwargs)

    return protected


SUMMED_AT_ONCE = 64  # tokens


@without_autocast
def running_sum(x: Tensor) -> Tensor:
    """x.cumsum(1) for x (B, T, ...), in blocks: torch walks down a column at a time, which misses every cache on a CPU."""
    if x.device.type != "cpu":
        return x.cumsum(1)
    if is_unrolled(x):
        sums: Tensor = _as_operator(x)
    elif is_transformed() or x.shape[1] <= SUMMED_AT_ONCE:
        sums = _sum_in_blocks(x)
    else:
        sums = _RunningSum.apply(x, False)
    return sums


def _sum_in_blocks(x: Tensor, later: bool = False) -> Tensor:
    """later: over all tokens from this one on, instead of up to it."""
    T = x.shape[1]
    if T <= SUMMED_AT_ONCE:
        return _sum(x, later)
    blocks: Tensor = pad(x.flatten(2), (0, 0, 0, -T % SUMMED_AT_ONCE)).unflatten(1, (-1, SUMMED_AT_ONCE))
    ones = x.new_ones(SUMMED_AT_ONCE, SUMMED_AT_ONCE)
    within = (ones.triu() if later else ones.tril()) @ blocks
    whole = within[:, 1:, 0] if later else within[:, :-1, -1]
    outside = pad(_sum(whole, later), (0, 0, 0, 1) if later else (0, 0, 1, 0))
    sums = (within + outside[:, :, None]).flatten(1, 2)[:, :T].view_as(x)
    return _sum(x, later) if has_nan(sums) else sums  # the product gives others the weight 0, which NaN survives


def _sum(x: Tensor, later: bool) -> Tensor:
    return x.flip(1).cumsum(1).flip(1) if later else x.cumsum(1)


class _RunningSum(torch.autograd.Function):
    """Its gradient is the sum over later tokens, as quick: that of its steps would fill tensors as long as the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, later: bool) -> Tensor:
        ctx.later = later
        return _sum_in_blocks(x, later)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _RunningSum.apply(dy, not ctx.later), None


_as_operator = one_operator("running_sum(Tensor x) -> Tensor", fake=lambda x: x.new_empty(x.shape))(_sum_in_blocks)
