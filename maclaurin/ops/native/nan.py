"""Whether a NaN is in a tensor: one look at its numbers, without the cost of torch's operators, or none.

Kernels look at their output as they write it. So that nobody need read it again, the last one that was free of NaN is
remembered as the object that it is: copies and other tensors are looked at.
"""

from __future__ import annotations

import ctypes
from weakref import ref

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.native import library

_written: ref[Tensor] | None = None


def run_looking(kernel: str, call: library.Attention | library.Linear | library.Delta, y: Tensor) -> None:
    """Run a kernel whose output is y, which nothing changes before `any_nan` is asked. Those of one token do not look."""
    global _written
    if y.shape[1] <= 1:
        return library.run(kernel, call)
    found = ctypes.c_int32(0)
    call.nan = ctypes.addressof(found)
    library.run(kernel, call)
    _written = None if found.value else ref(y)


def any_nan(x: Tensor) -> bool | None:
    """None where torch must be asked: for other dtypes, devices and layouts, and where something looks on."""
    if _written is not None and _written() is x:
        return False
    if (
        library.any_nan is None
        or library.default_backend == "torch"
        or type(x) is not Tensor
        or not x.is_cpu
        or x.dtype != torch.float32
    ):
        return None
    if is_functorch_wrapped_tensor(x) or _get_current_dispatch_mode() is not None:
        return None
    if not x.is_contiguous() and not (x.dim() > 2 and x.transpose(1, 2).is_contiguous()):
        return None
    return bool(library.any_nan(x.data_ptr(), x.numel()))
