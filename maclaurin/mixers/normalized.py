"""Normalised attention: linear attention whose divisor is a function of the token alone, learnt instead of summed.

    n_t = x_t·W_η + b per head;        y_t = Σ_{s<=t} (q_t·k_s) v_s / η(n_t);        out = W_o · y

No feature map, no scale and no sum of weights: weights may have either sign. The normalisers of softmax and of linear
attention are also one factor per query (DSF); here that factor is learnt instead of computed from the keys.
η: "exp" e^n, the paper's best; "softplus"; "sigmoid"; "softplus_offset" e^softplus(n + offset), of the authors' later code
(arXiv 2510.09379), which never amplifies; its offset, one per head, is learnt and starts between 4 and 9. That code also
has positive features and a short convolution (`feature_map="elu", conv_width=4`), and divides scores by √d, which W_o can
absorb.

1/η of the other three has no bound, so n is clamped to -20 from below: no output is amplified more than e^20 = 4.9e8
times, and no gradient pushes n further down. The authors have no such guard and divide by zero there.

Without a decay the layer does not see the order of tokens. The authors' models add learnt positions to their embedding;
the preset rotates q and k by exact positions instead, and `rotary="none"` is the paper's layer.

A norm over each token behind this layer would cancel η altogether; only W_o follows. The paper's figures compare it with an
MLP behind it to softmax and linear attention without one.

Sieber et al.: Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import one_of
from maclaurin.mixers.base import Call, MixerState, Zeros, initialise
from maclaurin.mixers.mechanisms import Linear
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.states import LinearState

ETAS = ("exp", "softplus", "sigmoid", "softplus_offset")
FEATURE_MAPS = ("identity", "elu")
SMALLEST = -20.0  # value of n


class Normalized(ProjectedMixer):
    """Options beside those of every projected mixer:

    eta: "exp", "softplus", "sigmoid", or "softplus_offset" for exp(softplus(n + offset)). feature_map: "elu" (elu + 1).
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    bidirectional = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        eta: str = "exp",
        feature_map: str = "identity",
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("eta", eta, ETAS)
        one_of("feature_map", feature_map, FEATURE_MAPS)
        self.eta = eta
        self.feature_map = feature_map
        self.eta_proj = nn.Linear(d_model, num_heads)
        self.offset = nn.Parameter(torch.linspace(4, 9, num_heads)) if eta == "softplus_offset" else None
        self.add_skip_and_gate()
        initialise(self, init)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        y, attention = self.mechanism(wide(p.q), p.k, p.v, p.log_decay, None if state is None else state.attention, call)
        return self.finish(self.with_skip(y * self.gain(x)[..., None], p), x), self.state_after(p, attention)

    @property
    def mechanism(self) -> Linear:
        """Without the divisor, which is a function of the token."""
        return Linear(self.feature_map, 1.0, self.causal, normalize=False)

    def gain(self, x: Tensor) -> Tensor:
        """1/η (B, T, H), in float32 at least."""
        n = self.eta_proj(x)
        n = n.to(torch.promote_types(n.dtype, torch.float32))
        if self.offset is not None:
            return torch.sigmoid(-(n + self.offset))  # exp(-softplus(z)) = σ(-z)
        n = n.clamp(min=SMALLEST)
        match self.eta:
            case "softplus":
                return 1 / F.softplus(n)
            case "sigmoid":
                return 1 + torch.exp(-n)
        return torch.exp(-n)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_kv_heads, self.key_dim, self.head_dim, dtype=zeros.wide)
        return self.carrying(LinearState(recurrent), zeros)


register(
    "normalized",
    Normalized,
    "normalised attention: linear attention divided by a learnt function of the token, instead of by a sum",
    "Sieber et al.: Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731, 2024",
    rotary="rope",
)
