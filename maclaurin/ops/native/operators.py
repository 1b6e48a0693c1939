"""Operators of the namespace `maclaurin`, as torch sees them: a CPU kernel, shapes for the compiler, gradients, flops.
Some have a GPU kernel as well (`ops/gpu/`), which shares all the rest.

`torch.library.custom_op` would do the same, but its first call imports the compiler, which takes more than a second. The
dispatcher takes 40 µs for an operator written in Python, as long as the small kernels of a decoding step run; where nobody
looks on, it has nothing to do, and `call` goes past it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from maclaurin.ops import gpu
from maclaurin.ops.native.layouts import Layouts, Shapes
from maclaurin.ops.native.library import raise_again
from maclaurin.ops.native.watching import is_watched

Function = Callable[..., Any]

_LIBRARY = torch.library.Library("maclaurin", "FRAGMENT")
_KERNELS: dict[str, Function] = {}


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    """The backward of a backward: refused, instead of a gradient that is silently zero."""
    raise RuntimeError("the native backend has no second derivatives: use backend='torch' for them")


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def operator(
    schema: str,
    *,
    shapes: Shapes,
    fake: Function,
    flops: Function,
    save: Function = _save_nothing,
    backward: Function = _no_second_derivative,
    on_gpu: Function | None = None,
) -> Callable[[Function], Function]:
    """Makes the decorated function the CPU kernel of `schema`, "name(Tensor x, …) -> Tensor".

    shapes: what the tensors must be. The kernel sees no others, and where torch finds no memory it ends in a MemoryError.
    fake: tensors of the right shapes from the same arguments. flops: their number, from shapes instead of tensors.
    save(ctx, inputs, output) and backward(ctx, *gradients) as in `torch.autograd.Function`; without them derivatives are
    refused, as those of a backward are. on_gpu: the kernel for tensors on a GPU.
    """
    name = schema.partition("(")[0]
    layouts = Layouts(schema, shapes)

    def define(function: Function) -> Function:
        @wraps(function)
        def kernel(*arguments: Any) -> Any:
            if on_gpu is not None and gpu.runs_on(arguments[0]):
                return on_gpu(*arguments)
            layouts.check(arguments)
            try:
                return function(*arguments)
            except RuntimeError as error:
                raise_again(error, f"the native operator {name}")

        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        for device in ("CPU",) if on_gpu is None else ("CPU", "CUDA"):
            _LIBRARY.impl(name, _without_tangents(kernel), device)
        torch.library.register_fake(f"maclaurin::{name}", fake, lib=_LIBRARY)
        torch.library.register_autograd(f"maclaurin::{name}", backward, setup_context=save, lib=_LIBRARY)
        register_flop_formula(getattr(torch.ops.maclaurin, name))(flops)
        _KERNELS[name] = kernel
        return kernel

    return define


def _without_tangents(kernel: Function) -> Function:
    """A kernel would drop them: refused, instead of a derivative that is silently zero."""

    def checked(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise NotImplementedError("the native backend has no forward-mode derivatives: use backend='torch' for them")
        return kernel(*arguments)

    return checked


def call(name: str, *arguments: Any) -> Any:
    """torch.ops.maclaurin.<name>(*arguments), directly where no gradient, compiler, mode or kind of tensor asks for more."""
    if torch.compiler.is_compiling() or is_watched(arguments):
        return getattr(torch.ops.maclaurin, name)(*arguments)
    return _KERNELS[name](*arguments)
