"""Whether Triton kernels can run here, and on which tensors. Nothing is imported from Triton before it is used.

With TRITON_INTERPRET=1 in the environment Triton runs kernels in Python, on tensors of the CPU. Such a process has no C++
kernels: it does with tensors of the CPU what another one does with those of a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

INTERPRET_VARIABLE = "TRITON_INTERPRET"
INTERPRETED = os.environ.get(INTERPRET_VARIABLE) == "1"  # as Triton reads it: when kernels are defined


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def runs_on(x: Tensor) -> bool:
    """Whether this is where Triton's kernels run, and not the C++ ones."""
    return x.is_cuda or (INTERPRETED and x.is_cpu)


def refusal(x: Tensor, dtype: torch.dtype) -> str | None:
    """What the kernels would need to run on this tensor, computing in `dtype`; None where they can."""
    from maclaurin.ops.transforms import is_transformed

    if not runs_on(x):
        return f"tensors on a CUDA or ROCm GPU (or {INTERPRET_VARIABLE}=1 in the environment), not on {x.device}"
    if not has_triton():
        return "Triton, which is not installed"
    if dtype != torch.float32:
        return f"float32 or less, not {dtype}"
    if is_transformed():
        return "a call without forward-mode differentiation and torch.func"
    return None
