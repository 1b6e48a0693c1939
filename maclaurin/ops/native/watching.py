"""Who looks on while an operator runs: what sees only torch's own operators must not be kept from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode


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


def needs_gradients(arguments: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
