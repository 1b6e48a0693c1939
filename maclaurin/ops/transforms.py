"""What `torch.func`, forward-mode differentiation and second derivatives ask of an op: ordinary operators, and no numbers.

None of them sees into a hand-written backward, into what is computed again backwards, or into a C++ kernel. While one of
them looks on, an op therefore runs its chunks as ordinary operators, whose intermediate results are kept: the numbers are
the same, and memory is linear in time where it would be constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

R = TypeVar("R")


def is_transformed() -> bool:
    """Whether forward-mode differentiation, `torch.func` or `torch.jit.trace` looks on: none of them sees into a kernel."""
    if torch.compiler.is_compiling():
        return False
    levels = forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None
    return levels or torch._C._is_tracing()


def has_numbers(x: Tensor) -> bool:
    """Whether there is anything to look at: not in a compiled graph or a fake tensor, and on the CPU alone.

    A look at a tensor on a GPU would wait until all that was launched is done, in every call.
    """
    return x.is_cpu and not (torch.compiler.is_compiling() or isinstance(x, FakeTensor))


def numbers(x: Tensor) -> Tensor:
    """The numbers of x to look at, under `torch.func.vmap` those of all examples."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x.detach() if x.requires_grad else x


def is_vmapped(x: Tensor) -> bool:
    """Whether x differs between the examples of a `torch.func.vmap`."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Where a tensor is made that outlives them: one made inside belongs to them."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        yield
    else:
        with temporarily_clear_interpreter_stack():
            yield


def recomputed(function: Callable[..., R], *arguments: Any) -> R:
    """function(*arguments), of which nothing is kept for the backward that its arguments do not say."""
    if not torch.is_grad_enabled() or is_transformed():
        return function(*arguments)
    result: R = checkpoint(function, *arguments, use_reentrant=False)
    return result


def twice_differentiable(
    function: Callable[..., tuple[Tensor | None, ...]],
    inputs: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    *options: Any,
) -> list[Tensor | None]:
    """The gradients by the inputs of function(*inputs, *options), made of ordinary operators, to be differentiated again.

    gradients: those by its outputs. For a backward that is called with create_graph=True.
    """
    with torch.enable_grad():
        own = [None if x is None else x.view_as(x) for x in inputs]  # apart from where else an input is used
        outputs = function(*own, *options)
        pairs = [(y, dy) for y, dy in zip(outputs, gradients, strict=True) if y is not None and dy is not None]
        wanted = [x for x in own if x is not None and x.requires_grad]
        found = torch.autograd.grad(
            [y for y, _ in pairs], wanted, [dy for _, dy in pairs], create_graph=True, allow_unused=True
        )
    by_input = dict(zip(map(id, wanted), found, strict=True))
    return [by_input.get(id(x)) for x in own]
