"""Which training steps use a short window: SWAX's stochastic schedule.

A model with sliding-window and recurrent layers is trained with a short window in some steps, so that distant tokens can
only be reached through the recurrent state, and with its own, long window in the others and in all of the last steps.
The draw depends on the seed and the step alone: all ranks and all resumed runs agree.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from torch import nn

from maclaurin.mixers.attention import Attention


@dataclass(frozen=True)
class WindowSchedule:
    short: int
    probability: float
    steps: int
    seed: int
    long_end: float = 0.1  # part of the steps, the last ones, that always have the long window

    def is_short(self, step: int) -> bool:
        """Whether that step, counted from 0, has the short window."""
        if step >= self.steps - round(self.long_end * self.steps):
            return False
        return random.Random(f"window {self.seed} {step}").random() < self.probability


def own_windows(model: nn.Module) -> dict[Attention, int]:
    """The mixers of a model that see only the last tokens, and how many."""
    mixers = (module for module in model.modules() if isinstance(module, Attention))
    return {mixer: mixer.window for mixer in mixers if mixer.window is not None}
