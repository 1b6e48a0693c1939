"""Which backend runs a call, in one place for all ops: what is asked for, what can run, and who is told.

`backend="auto"` takes the C++ kernels on a CPU and the Triton kernels on a GPU where they can run and are faster. The
environment variable MACLAURIN_BACKEND replaces "auto" in every call of a process (`native/library.py` reads it). As a wish
for everything, "native" or "triton" cannot mean mechanisms that have no kernel: they run in torch as before; a call that a
kernel exists for runs there or says why not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.ops import gpu
from maclaurin.ops.gpu import fla_core
from maclaurin.ops.native import library


class SlowPathWarning(UserWarning):
    """Something runs more slowly than it could. Said once per process and reason."""


class Choice(NamedTuple):
    """What one op decided. reason: why torch runs it; None where kernels do. kernels: "native", "triton" or "fla"."""

    op: str
    form: str
    reason: str | None
    kernels: str = "native"

    @property
    def backend(self) -> str:
        return self.kernels if self.reason is None else "torch"


_said: set[str] = set()
_watching: list[Choice] | None = None


def kernels_for(x: Tensor) -> str:
    """Which kernels run on tensors like x, where there are some."""
    return "triton" if gpu.runs_on(x) else "native"


def reason_for_torch(
    backend: str,
    x: Tensor,
    dtype: torch.dtype,
    *,
    no_kernel: str | None = None,
    torch_is_faster: str | None = None,
    in_triton: bool = False,
) -> str | None:
    """Why torch computes a call on tensors like x in `dtype`; None where kernels do.

    no_kernel: what the call would have to be for a kernel to exist. torch_is_faster: why "auto" prefers torch all the same.
    in_triton: whether the op has Triton kernels beside the C++ ones.
    """
    wanted = library.default_backend if backend == "auto" else backend
    if wanted == "torch":
        return "backend='torch'" if backend == "torch" else f"{library.BACKEND_VARIABLE}=torch"
    kernels = kernels_for(x) if wanted == "auto" else wanted
    if kernels == "triton" and no_kernel is None and not in_triton:
        no_kernel = "an op that has Triton kernels"
    # `is None`, not `or`: torch 2.9's compiler does not know whether a formatted string is empty
    refusal = (library if kernels == "native" else gpu).refusal(x, dtype) if no_kernel is None else no_kernel
    if wanted == kernels:
        if refusal is None:
            return None
        if backend == kernels:
            raise ValueError(f"backend={kernels!r} needs {refusal}")
        if no_kernel is None:
            raise ValueError(f"{library.BACKEND_VARIABLE}={kernels} needs {refusal}")
    if refusal is None:
        return torch_is_faster
    if no_kernel is None and torch_is_faster is None and not x.is_meta:
        name = "C++" if kernels == "native" else "Triton"
        say_once(f"PyTorch runs what the {name} kernels could: they need {refusal}")
    return f"the kernels need {refusal}"


def say_once(sentence: str) -> None:
    """A SlowPathWarning, the first time in this process. Not in a compiled graph, nor to those who watch."""
    if torch.compiler.is_compiling() or _watching is not None or sentence in _said:
        return
    _said.add(sentence)
    warnings.warn(f"{sentence} (said once; `maclaurin.explain` shows all layers)", SlowPathWarning, stacklevel=3)


def by_fla(backend: str, x: Tensor) -> bool:
    """Whether first order runs in the kernels of fla-core: on a GPU, where nobody asked for another backend."""
    return backend == library.default_backend == "auto" and fla_core.runs_on(x)


def note(op: str, form: str, reason: str | None, x: Tensor | None = None, *, fla: bool = False) -> None:
    """Called by every op that has decided, for tensors like x: told to whoever watches."""
    if _watching is not None:
        kernels = "fla" if fla else "native" if x is None else kernels_for(x)
        _watching.append(Choice(op, form, None if fla else reason, kernels))


@contextmanager
def watching() -> Iterator[list[Choice]]:
    """What ops decide until the end of the block."""
    global _watching
    before, _watching = _watching, []
    try:
        yield _watching
    finally:
        _watching = before
