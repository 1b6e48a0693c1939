"""The output of a training step. Its loss needs no tensor of all logits, so they are computed when somebody reads them.

The Trainer reads the loss alone. What else there is, such as distillation or a trainer that logs accuracies, reads `logits`
and finds them, with their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast


@dataclass
class TrainingOutput(CausalLMOutputWithPast):
    """`logits` may be a `partial` that computes them.

    It stays one in `items()`: accelerate copies outputs through them, at every step in mixed precision.
    """

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "logits" and isinstance(value, partial):
            value = self.logits = value()
        return value

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            key = list(self)[key]
        return getattr(self, key) if key == "logits" else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`


def when_read(head: nn.Module, hidden: Tensor) -> partial[Tensor]:
    """The logits that `head` makes of `hidden`, later, as it would make them now."""
    device = "cpu" if hidden.is_meta else hidden.device.type  # without storage there is no precision to choose
    precision = torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
    return partial(precision(head), hidden)
