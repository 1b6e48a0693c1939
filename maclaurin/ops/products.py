"""x·Wᵀ + b for many rows, by the library that is the fastest on this processor.

PyTorch multiplies float32 by MKL, which has AVX-512 for Intel's processors alone and takes AVX2 on all others: half of what
an AMD core with AVX-512 can do. oneDNN, which PyTorch brings as well, asks for the instruction set and not for the maker.
`torch.backends.mkldnn.flags(enabled=False)` leaves all products to MKL.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.utils.flop_counter import register_flop_formula

from maclaurin.common.processor import made_by_intel
from maclaurin.ops.transforms import is_transformed

LEAST_SIDE, LEAST_SIZE = 16, 2**20  # rows, inputs or outputs, and multiply-adds: below, a call costs more than it saves


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`."""
    if not _is_large(x, weight) or not _onednn_is_faster() or not _are_plain(x, weight, bias):
        return F.linear(x, weight, bias)
    y: Tensor = _Product.apply(x, weight, bias)
    return y


def _is_large(x: Tensor, weight: Tensor) -> bool:
    inputs = weight.shape[-1]
    rows = x.numel() // max(inputs, 1)
    return min(rows, *weight.shape) >= LEAST_SIDE and rows * weight.numel() >= LEAST_SIZE


@cache
def _onednn_is_faster() -> bool:
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not made_by_intel()
    )


def _are_plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tensors of float32 on the CPU, and nobody who wants to see torch's own product of them."""
    if torch.compiler.is_compiling() or is_transformed() or torch.is_autocast_enabled("cpu"):
        return False
    if not torch.backends.mkldnn.enabled:  # type: ignore[attr-defined]
        return False
    given = (x, weight) if bias is None else (x, weight, bias)
    return all((type(t) is Tensor or type(t) is Parameter) and t.is_cpu and t.dtype == torch.float32 for t in given)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        times = F.linear if torch.is_grad_enabled() else _by_onednn  # that of a second derivative is differentiated itself
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = dy.flatten(0, -2)
        return (
            times(dy, weight.T) if needs_x else None,
            times(rows.T, x.flatten(0, -2).T) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _flops(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * int(weight[0])


if torch.backends.mkldnn.is_available():
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_flops)
