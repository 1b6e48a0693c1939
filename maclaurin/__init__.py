"""Maclaurin: attention as expressive as softmax and linear in sequence length.

mixer = maclaurin.build_mixer("2mamba", d_model=512, num_heads=8)
y, state = mixer(x)            # x, y: (batch, time, 512)
y, state = mixer(x_next, state)
"""

from maclaurin.machine.bfloat16 import limit_isa

limit_isa()  # before torch is imported

# ruff: noqa: E402
from maclaurin import ops
from maclaurin.mixers import Mixer, available_mixers, build_mixer
from maclaurin.ops import State

__version__ = "0.1.0"
__all__ = ["Mixer", "State", "available_mixers", "build_mixer", "ops"]
