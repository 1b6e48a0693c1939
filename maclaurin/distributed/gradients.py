"""Gradients of models over processes: their sum, where sequences are cut, and their norm, where parameters are split."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


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


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> Tensor:
    """What `clip_grad_norm_` of PyTorch does, where some parameters are split over processes and others are whole: it takes
    no mixture of both. The norm before.
    """
    of_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
            of_mesh.setdefault(mesh, []).append(parameter)
    norms = [_whole(get_total_norm([one.grad for one in some if one.grad is not None])) for some in of_mesh.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for some in of_mesh.values():
        clip_grads_with_norm_(some, largest, norm)
    return norm


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x
