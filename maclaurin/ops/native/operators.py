"""Operators of the namespace `maclaurin`, as torch sees them: a CPU kernel, shapes for the compiler, gradients, flops.

`torch.library.custom_op` would do the same, but its first call imports the compiler, which takes more than a second. The
dispatcher takes 40 µs for an operator written in Python, as long as the small kernels of a decoding step run; where nobody
looks on, it has nothing to do, and `call` goes past it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import register_flop_formula

from maclaurin.ops.native.layouts import Layouts, Shapes
from maclaurin.ops.native.library import raise_again

Function = Callable[..., Any]

_LIBRARY = torch.library.Library("maclaurin", "FRAGMENT")
_KERNELS: dict[str, Function] = {}


def operator(
    schema: str,
    *,
    shapes: Shapes,
    fake: Function,
    flops: Function,
    save: Function | None = None,
    backward: Function | None = None,
) -> Callable[[Function], Function]:
    """Makes the decorated function the CPU kernel of `schema`, "name(Tensor x, …) -> Tensor".

    shapes: what the tensors must be. The kernel sees no others, and where torch finds no memory it ends in a MemoryError.
    fake: tensors of the right shapes from the same arguments. flops: their number, from shapes instead of tensors.
    save(ctx, inputs, output) and backward(ctx, *gradients) as in `torch.autograd.Function`.
    """
    name = schema.partition("(")[0]
    layouts = Layouts(schema, shapes)

    def define(function: Function) -> Function:
        @wraps(function)
        def kernel(*arguments: Any) -> Any:
            layouts.check(arguments)
            try:
                return function(*arguments)
            except RuntimeError as error:
                raise_again(error, f"the native operator {name}")

        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, kernel, "CPU")
        torch.library.register_fake(f"maclaurin::{name}", fake, lib=_LIBRARY)
        if backward is not None:
            torch.library.register_autograd(f"maclaurin::{name}", backward, setup_context=save, lib=_LIBRARY)
        register_flop_formula(getattr(torch.ops.maclaurin, name))(flops)
        _KERNELS[name] = kernel
        return kernel

    return define


def call(name: str, *arguments: Any) -> Any:
    """torch.ops.maclaurin.<name>(*arguments), directly where no gradient, compiler, mode or kind of tensor asks for more."""
    if torch.compiler.is_compiling() or is_watched(arguments):
        return getattr(torch.ops.maclaurin, name)(*arguments)
    return _KERNELS[name](*arguments)


def is_watched(arguments: tuple[Any, ...]) -> bool:
    if _get_current_dispatch_mode() is not None:
        return True
    with_gradients = torch.is_grad_enabled()
    for x in arguments:
        if type(x) is Tensor or type(x) is Parameter:
            if with_gradients and x.requires_grad:
                return True
        elif isinstance(x, Tensor):
            return True
    return False


def no_second_derivative(ctx: Any, *_: Any) -> None:
    """The backward of a backward: refused, instead of a gradient that is silently zero."""
    raise RuntimeError("the native backend has no second derivatives: use backend='torch' with form='parallel' for them")


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass
