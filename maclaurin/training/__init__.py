"""Training: a recipe, and the Hugging Face Trainer made safe against interruption.

A recipe needs no library: PyTorch and transformers are imported with `train`, so that the shell can list its flags at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maclaurin.training.recipe import Recipe

if TYPE_CHECKING:
    from maclaurin.training.run import Result, train
    from maclaurin.training.trainer import NonFiniteLossError

__all__ = ["NonFiniteLossError", "Recipe", "Result", "train"]

_HOMES = {
    "NonFiniteLossError": "maclaurin.training.trainer",
    "Result": "maclaurin.training.run",
    "train": "maclaurin.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'maclaurin.training' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
