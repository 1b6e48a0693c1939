"""Whether a tensor has numbers to look at."""

from __future__ import annotations

import torch
from torch import Tensor


def has_values(x: Tensor) -> bool:
    """False in compiled and exported graphs, and for tensors without storage (device="meta")."""
    return not (torch.compiler.is_compiling() or x.is_meta)
