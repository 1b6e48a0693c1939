"""The exponential's series up to second order as a torch operator: squared scores whose first channel counts twice.

    1 + x + x²/2 = ((1 + x)² + 1²)/2,   x = q·k

With (1, q) and (1, k), both over 2^(1/4), (q·k)² + (q₀k₀)² are the weights of the series. The monomials of (1, k) are 1, k
and the products of k, so that the state is that of the orders 0, 1 and 2. Kernels and arguments are those of `attention.py`,
their guard against rounding included. A token whose first channel is zero has no weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.native import attention
from maclaurin.ops.native.operators import operator

INPUTS = f"{attention.INPUTS}, Tensor? state"
OPTIONS = "float scale, bool normalize, int chunk, SymInt folded, bool direct"


def _gradients(ctx: Any, dy: Tensor, dtotal: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpointing unpacks them only once
    folded = ctx.options[-2]
    found = torch.ops.maclaurin.series_backward(dy, dnew_state if folded else None, *saved, *ctx.options)
    return *(None if x is None else dx for x, dx in zip(saved[:5], found, strict=True)), *(None,) * len(ctx.options)


def _fake(*arguments: Any) -> tuple[Tensor, ...]:
    return attention.chunked_fake(*arguments[:-1])


def _flops(*arguments: Any, **_: Any) -> int:
    return attention.chunked_flops(*arguments[:-1])


@operator(
    f"series({INPUTS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
    shapes=attention.SHAPES,
    fake=_fake,
    flops=_flops,
    save=attention.save,
    backward=_gradients,
)
def _series(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *arguments_of_chunks, direct = arguments
    kernel = "quadratic_forward" if direct else "chunked_forward"
    return attention.attend(kernel, *arguments_of_chunks, constant=1)


@operator(
    f"series_backward(Tensor dy, Tensor? dnew_state, {INPUTS}, Tensor y, Tensor total, Tensor new_state, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes=attention.SHAPES,
    fake=attention.chunked_backward_fake,
    flops=attention.chunked_backward_flops,
)
def _series_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *arguments_of_chunks, direct = arguments
    kernel = "quadratic_backward" if direct else "chunked_backward"
    return attention.attend_backward(kernel, *arguments_of_chunks, constant=1)
