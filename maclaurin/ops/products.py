"""x·Wᵀ + b for more than a row or two, by the library that is the fastest on this processor.

PyTorch multiplies float32 by MKL, which has AVX-512 for Intel's processors alone and takes AVX2 on all others: half of what
an AMD core with AVX-512 can do. oneDNN, which PyTorch brings as well, asks for the instruction set and not for the maker.
`torch.backends.mkldnn.flags(enabled=False)` leaves all products to MKL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.flop_counter import register_flop_formula

from maclaurin.common.processor import made_by_intel
from maclaurin.ops.transforms import is_transformed

M = TypeVar("M", bound=nn.Module)
_CALLED_AROUND = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")
# Below, a call costs more than it saves. Few rows gain because MKL reads the weights at half of the memory's speed.
FEWEST_ROWS, LEAST_SIDE, LEAST_SIZE = 3, 16, 2**20  # rows, inputs or outputs, multiply-adds
TURNING = 3  # copies of a number in place of which one in another order is written


def of_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x). Of a plain `nn.Linear` that nobody has wrapped or hooked, the product alone."""
    if type(layer) is nn.Linear and _by_onednn_is_faster(x, layer.weight, layer.bias) and not is_hooked(layer):
        return _product(x, layer.weight, layer.bias)
    y: Tensor = layer(x)
    return y


def is_hooked(layer: nn.Module) -> bool:
    """Hooks see calls of the layer, and tools that offload weights give it a forward of its own."""
    own = vars(layer)
    return "forward" in own or any(own.get(name) for name in _CALLED_AROUND) or _has_any_global_hook()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`."""
    return (_product if _by_onednn_is_faster(x, weight, bias) else F.linear)(x, weight, bias)


class FasterLinear(nn.Linear):
    """A layer of somebody else's model whose product is `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def with_faster_products(model: M) -> M:
    """The model itself, whose plain linear layers multiply as ours do. Names, weights and hooks stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FasterLinear
    return model


def _by_onednn_is_faster(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """For large products of float32 on such a CPU, if nobody wants to see torch's own product of them."""
    if torch.compiler.is_compiling() or not mkl_falls_back() or not _is_large(x, weight) or is_transformed():
        return False
    if torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return False
    given = (x, weight) if bias is None else (x, weight, bias)
    return all((type(t) is Tensor or type(t) is Parameter) and t.is_cpu and t.dtype == torch.float32 for t in given)


def _is_large(x: Tensor, weight: Tensor) -> bool:
    rows = x.numel() // max(x.shape[-1], 1)
    return rows >= FEWEST_ROWS and min(weight.shape) >= LEAST_SIDE and rows * weight.numel() >= LEAST_SIZE


@cache
def mkl_falls_back() -> bool:
    """Whether torch multiplies by MKL on a processor whose AVX-512 it leaves out."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not made_by_intel()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = (_Product.apply if torch.is_grad_enabled() else _by_onednn)(x, weight, bias)
    return y


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
            _of_columns(times, rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _of_columns(times: Callable[[Tensor, Tensor], Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """rowsᵀ·columns. oneDNN copies the transpose of its first factor: that had better be the narrow one, unless turning
    the result over, which is slower, costs more."""
    if rows.numel() <= columns.numel() + TURNING * rows.shape[1] * columns.shape[1]:
        return times(rows.T, columns.T)
    return times(columns.T, rows.T).T.contiguous()


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not (weight.is_contiguous() or weight.T.is_contiguous()):  # oneDNN has plain loops then, a thousand times slower
        weight = weight.T.contiguous().T if weight.stride(0) == 1 else weight.contiguous()
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * weight[0]


if torch.backends.mkldnn.is_available():
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_flops)
