"""From the mixer of a layer to the norm in front of the next one: residual sums, norms and the MLP."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from maclaurin.mixers.base import RMSNorm
from maclaurin.models.decoder import GatedMLP
from maclaurin.ops.native import library
from maclaurin.ops.native.mlp import BetweenMixers, fits
from maclaurin.ops.products import is_hooked

MOST = 64  # tokens up to which the native kernel is the faster way


class Between:
    """next_norm: in front of the next layer's mixer, or of the model's head."""

    def __init__(self, layer: Any, next_norm: nn.Module) -> None:
        self.layer, self.next_norm = layer, next_norm
        self.natively = _native(layer, next_norm)

    def __call__(self, hidden: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden state in front of the next layer, and its norm. mixed: what the mixer gives."""
        if self.natively is not None and hidden.shape[1] == 1 and hidden.shape[0] <= MOST:
            return self.natively(hidden, mixed)
        hidden = hidden + mixed
        if self.layer.mlp is not None:
            hidden = hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))
        return hidden, self.next_norm(hidden)


def _native(layer: Any, next_norm: Any) -> BetweenMixers | None:
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    if not library.may_run() or type(mlp) is not GatedMLP or mlp.kind != "swiglu":
        return None
    linears, norms = [mlp.gate_proj, mlp.up_proj, mlp.down_proj], [norm, next_norm]
    if any(type(one) is not nn.Linear or one.bias is not None for one in linears):
        return None
    if any(type(one) is not RMSNorm or one.zero_centered for one in norms) or any(map(is_hooked, [mlp, *linears, *norms])):
        return None
    weights = [norm.weight, *(one.weight for one in linears), next_norm.weight]
    return BetweenMixers(weights, norm.eps, next_norm.eps) if fits(weights) else None
