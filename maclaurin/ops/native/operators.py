"""Operators of the namespace `maclaurin`, as torch sees them: a CPU kernel, shapes for the compiler, gradients, flops.

`torch.library.custom_op` would do the same, but its first call imports the compiler, which takes more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

_LIBRARY = torch.library.Library("maclaurin", "FRAGMENT")

Function = Callable[..., Any]

KERNELS: dict[str, Function] = {}  # by the name of their operator, for `direct.py`


def operator(
    schema: str,
    *,
    fake: Function,
    flops: Function,
    save: Function | None = None,
    backward: Function | None = None,
) -> Callable[[Function], Function]:
    """Makes the decorated function the CPU kernel of `schema`, "name(Tensor x, …) -> Tensor".

    fake: tensors of the right shapes from the same arguments. flops: their number, from shapes instead of tensors.
    save(ctx, inputs, output) and backward(ctx, *gradients) as in `torch.autograd.Function`.
    """
    name = schema.partition("(")[0]

    def define(kernel: Function) -> Function:
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, kernel, "CPU")
        KERNELS[name] = kernel
        torch.library.register_fake(f"maclaurin::{name}", fake, lib=_LIBRARY)
        if backward is not None:
            torch.library.register_autograd(f"maclaurin::{name}", backward, setup_context=save, lib=_LIBRARY)
        register_flop_formula(getattr(torch.ops.maclaurin, name))(flops)
        return kernel

    return define


def no_second_derivative(ctx: Any, *_: Any) -> None:
    """The backward of a backward: refused, instead of a gradient that is silently zero."""
    raise RuntimeError("the native backend has no second derivatives: use backend='torch' with form='parallel' for them")


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass
