"""Gradients of a model whose sequences are cut over the processes of a group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, distributed


def sum_gradients(parameters: Iterable[Tensor], group: distributed.ProcessGroup | None = None) -> None:
    """Adds up, in place, what each process has found on its slice, in one message per dtype and device.

    Every process must have the same parameters; those without a gradient on one have zeros there.
    """
    of_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            of_kind.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for gradients in of_kind.values():
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat, group=group)
        for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
