"""Low-rank updates of linear layers: W + U·D with D (rank x in) random and U (out x rank) zero at first; merged at the end.

Hu et al.: LoRA, arXiv 2106.09685. The factors are parameters of the layer itself, so that names of all other weights stay.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

DOWN, UP = "lora_down", "lora_up"


class LowRank:
    """Adds factors to the given linear layers until `merge`."""

    def __init__(self, layers: list[nn.Linear], rank: int) -> None:
        self.layers = layers
        self.handles: list[RemovableHandle] = []
        for layer in layers:
            down = torch.randn(rank, layer.in_features, dtype=torch.float32, device=layer.weight.device)
            layer.register_parameter(DOWN, nn.Parameter((down * layer.in_features**-0.5).to(layer.weight.dtype)))
            layer.register_parameter(UP, nn.Parameter(layer.weight.new_zeros(layer.out_features, rank)))
            self.handles.append(layer.register_forward_hook(_add))

    @torch.no_grad()
    def merge(self) -> None:
        """The update becomes part of the weights, and nothing else is left of it."""
        for layer, handle in zip(self.layers, self.handles, strict=True):
            layer.weight += layer.get_parameter(UP) @ layer.get_parameter(DOWN)
            handle.remove()
            delattr(layer, DOWN)
            delattr(layer, UP)


def _add(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + F.linear(F.linear(args[0], layer.get_parameter(DOWN)), layer.get_parameter(UP))
