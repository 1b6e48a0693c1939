"""A short way to an operator's function. The dispatcher takes longer for an operator written in Python than the small
kernels of a decoding step run; where nobody looks on, it has nothing to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.native.operators import KERNELS


def call(name: str, *arguments: Any) -> Any:
    """torch.ops.maclaurin.<name>(*arguments), directly where no gradient, compiler, mode or kind of tensor asks for more."""
    if torch.compiler.is_compiling() or _is_watched(arguments):
        return getattr(torch.ops.maclaurin, name)(*arguments)
    return KERNELS[name](*arguments)


def _is_watched(arguments: tuple[Any, ...]) -> bool:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    with_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return (
        with_gradient or _get_current_dispatch_mode() is not None or any(type(x) not in (Tensor, Parameter) for x in tensors)
    )
