"""The matrix products of PyTorch in a call, alone: what would be left if everything else cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
PRODUCTS = [_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default]
if torch.backends.mkldnn.is_available():
    PRODUCTS.append(torch.ops.mkldnn._linear_pointwise.default)  # of `ops/products.py`


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[Any, list[Any]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in PRODUCTS:
            self.products.append((function, [_like(x) if isinstance(x, Tensor) else x for x in args]))
        return function(*args, **(kwargs or {}))


def _like(x: Tensor) -> Tensor:
    """Other numbers in the same layout."""
    extent = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return torch.randn(extent, dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride())


def products_of(call: Callable[[], object]) -> list[tuple[Any, list[Any]]]:
    """Every product of `call`, forward and backward, with operands of the same shapes, strides and dtypes.

    Products inside of our own kernels are not among them.
    """
    recorder = _Recorder()
    with recorder:
        call()
    return recorder.products


def repeat(products: list[tuple[Any, list[Any]]]) -> None:
    with torch.no_grad():
        for function, operands in products:
            function(*operands)
