"""Maclaurin: attention as expressive as softmax and linear in sequence length.

mixer = maclaurin.build_mixer("2mamba", d_model=512, num_heads=8)
y, state = mixer(x)            # x, y: (batch, time, 512)
y, state = mixer(x_next, state)

PyTorch is imported with the first of these names: the shell answers `maclaurin --help` without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maclaurin.machine.bfloat16 import limit_isa

limit_isa()  # before torch is imported

if TYPE_CHECKING:
    from maclaurin import ops
    from maclaurin.acceleration import accelerate_transformers
    from maclaurin.mixers import Mixer, available_mixers, build_mixer
    from maclaurin.mixers.explain import explain
    from maclaurin.ops import State

__version__ = "0.1.0"
__all__ = ["Mixer", "State", "accelerate_transformers", "available_mixers", "build_mixer", "explain", "ops"]

_HOMES = {
    "Mixer": "maclaurin.mixers",
    "State": "maclaurin.ops",
    "accelerate_transformers": "maclaurin.acceleration",
    "available_mixers": "maclaurin.mixers",
    "build_mixer": "maclaurin.mixers",
    "explain": "maclaurin.mixers.explain",
}


def __getattr__(name: str) -> Any:
    if name in ("ops", "serving"):
        return importlib.import_module(f"maclaurin.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'maclaurin' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
