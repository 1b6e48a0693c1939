"""Whether a NaN is in a tensor: one look at its numbers, without the cost of torch's operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.native import library
from maclaurin.ops.transforms import is_transformed


def any_nan(x: Tensor) -> bool | None:
    """None where torch must be asked: for other dtypes, devices and layouts, and where something looks on."""
    if (
        library.any_nan is None
        or library.default_backend == "torch"
        or type(x) is not Tensor
        or not x.is_cpu
        or x.dtype != torch.float32
    ):
        return None
    if is_transformed() or _get_current_dispatch_mode() is not None:
        return None
    if not x.is_contiguous() and not (x.dim() > 2 and x.transpose(1, 2).is_contiguous()):
        return None
    return bool(library.any_nan(x.data_ptr(), x.numel()))
