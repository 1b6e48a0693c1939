"""The Triton backend: kernels for GPUs, registered as those of the operators that the native backend defines for the CPU.

`availability.py` says where they run; a kernel is imported when it is called for the first time, and Triton with it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from maclaurin.ops.gpu.availability import INTERPRETED, has_triton, refusal, runs_on

__all__ = ["INTERPRETED", "LARGEST_KEY", "has_triton", "kernel", "refusal", "runs_on"]

LARGEST_KEY = 128  # channels per head


def kernel(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module beside this one."""

    def run(*arguments: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(*arguments)

    return run
