"""Functions with a loop over time as one operator each: all that `torch.compile` and `torch.export` see of them.

A compiler unrolls a loop over chunks: compiling takes time in proportion to the sequence, and every length is compiled
anew. An operator is one node of the graph at any length, and may choose by length what it does. In eager mode nobody calls
these operators: the dispatcher takes longer than the function call that they stand for.

The gradients are those that autograd finds for the same function, which is computed again for them: between the two passes
nothing is kept but its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]

_LIBRARY = torch.library.Library("maclaurin", "FRAGMENT")


def is_unrolled(x: Tensor) -> bool:
    """Whether a compiler looks on that would unroll a loop over the tokens of x (B, T, ...)."""
    return torch.compiler.is_compiling() and x.shape[1] != 1


def one_operator(schema: str, fake: Function) -> Callable[[Function], Function]:
    """The decorated function as the operator of `schema`, "name(Tensor x, …) -> (Tensor, …)", which is returned.

    fake: tensors of the right shapes from the same arguments. Outputs are floating point tensors, and none is an input; for
    None the operator returns an empty tensor.
    """
    name, _, rest = schema.partition("(")
    arguments, _, _ = rest.rpartition(" -> ")

    def define(function: Function) -> Function:
        def forward(*given: Any) -> Any:
            with torch.no_grad(), _without_autocast(given):
                outputs = function(*given)
            if isinstance(outputs, Tensor):
                return outputs.contiguous()  # dense, as the fake ones are
            return tuple(given[0].new_empty(0) if y is None else y.contiguous() for y in outputs)

        def gradients(received: list[Tensor], *given: Any) -> list[Tensor]:
            with torch.enable_grad(), _without_autocast(given):
                copies = [x.detach().requires_grad_() if _has_gradient(x) else x for x in given]
                outputs = function(*copies)
            outputs = [outputs] if isinstance(outputs, Tensor) else outputs
            pairs = ((y, dy) for y, dy in zip(outputs, received, strict=True) if y is not None and y.requires_grad)
            reached, sent = zip(*pairs, strict=True)
            leaves = [x for x in copies if _has_gradient(x)]
            found = torch.autograd.grad(reached, leaves, sent, allow_unused=True, materialize_grads=True)
            return [gradient.contiguous() for gradient in found]

        def fake_gradients(received: list[Tensor], *given: Any) -> list[Tensor]:
            return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in given if _has_gradient(x)]

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.options = [None if isinstance(x, Tensor) else x for x in inputs]
            ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))

        def backward(ctx: Any, *received: Tensor) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
            given = [option if tensor is None else tensor for tensor, option in zip(saved, ctx.options, strict=True)]
            found = iter(getattr(torch.ops.maclaurin, f"{name}_backward")(list(received), *given))
            return tuple(next(found) if _has_gradient(x) else None for x in given)

        backward_schema = f"{name}_backward(Tensor[] received, {arguments} -> Tensor[]"
        for scheme, kernel, shapes in ((schema, forward, fake), (backward_schema, gradients, fake_gradients)):
            operator = scheme.partition("(")[0]
            _LIBRARY.define(scheme, tags=(torch.Tag.pt2_compliant_tag,))
            _LIBRARY.impl(operator, kernel, "CompositeExplicitAutograd")
            torch.library.register_fake(f"maclaurin::{operator}", shapes, lib=_LIBRARY)
        torch.library.register_autograd(f"maclaurin::{name}", backward, setup_context=save, lib=_LIBRARY)
        found: Function = getattr(torch.ops.maclaurin, name)
        return found

    return define


def _without_autocast(given: tuple[Any, ...]) -> torch.autocast:
    return torch.autocast(given[0].device.type, enabled=False)  # the graph around the operator has chosen the dtypes


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
