"""HGRN2: gated linear attention whose forget gate is also its key, so that a token writes as much as it erases.

    q, z, v = x·W;   k_t = (1 − β)·σ(−z_t),   f_t = 1 − k_t;   S_t = diag(f_t) S_{t-1} + k_t v_tᵀ
    y_t = silu(q_t) S_t / √d;   out = W_o · RMSNorm(y), over all heads together

β bounds the forget gates of a layer from below, one number per channel that the layers of a model share out:

    β_l = Σ_{0<j<=l} softmax_j(γ),   γ (layers, channels) learned, 0 at the start

so that β is 0 in the first layer and rises with depth: lower layers may forget at once, upper ones cannot. A model of such
layers has γ as its `lower_bounds`; a layer alone is a first one. Keys are as wide as values: d_model/num_heads is what the
authors call the expansion. Their code divides by √d, which the norm undoes but for its epsilon, and has a short convolution
of q, z and v as an option (`conv_width=4`).

Qin et al.: HGRN2: Gated Linear RNNs with State Expansion, arXiv 2404.07904.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one, positive
from maclaurin.mixers.base import Call, Mixer, MixerState, RMSNorm, ShortConv, Zeros, initialise
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.products import of_layer
from maclaurin.ops.states import LinearState
from maclaurin.ops.transitions import decay_transition


class LowerBounds(nn.Module):
    """β of the layers of a model, (channels,) for the number of a layer."""

    def __init__(self, layers: int, channels: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(layers, channels))

    def forward(self, layer: int) -> Tensor:
        return wide(self.logits).softmax(0)[1 : layer + 1].sum(0)


class HGRN2(Mixer):
    """Options. bounded: whether the layers of a model have lower bounds. head_dim: d_model/num_heads unless given.

    conv_width, conv_bias: the causal short convolution; 0 for none. norm_eps: of the norm of the output.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        bounded: bool = True,
        conv_width: int = 0,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        init: str = "torch",
    ) -> None:
        super().__init__(d_model, num_heads)
        at_least(0, "conv_width", conv_width)
        positive("norm_eps", norm_eps)
        if head_dim is None and d_model % num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads, got {d_model} and {num_heads}")
        if head_dim is not None:
            at_least_one("head_dim", head_dim)
        self.bounded = bounded
        self.bound: Callable[[], Tensor] | None = None  # β, where the layers of a model share bounds
        self.head_dim = head_dim or d_model // num_heads
        self.inner_dim = num_heads * self.head_dim
        self.in_proj = nn.Linear(d_model, 3 * self.inner_dim, bias=False)  # q, z, v
        self.conv = ShortConv(3 * self.inner_dim, conv_width, conv_bias) if conv_width else None
        self.out_norm = RMSNorm(self.inner_dim, norm_eps)
        self.out_proj = nn.Linear(self.inner_dim, d_model, bias=False)
        initialise(self, init)

    @property
    def folds(self) -> bool:
        return True

    @property
    def whole_because(self) -> None:
        return None

    @property
    def fused(self) -> dict[str, list[int]]:
        return dict.fromkeys(("in_proj", "conv"), [self.inner_dim] * 3)

    def options_of_part(self, parts: int) -> dict[str, Any]:
        return {"head_dim": self.head_dim}

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        qzv, conv = of_layer(self.in_proj, x), None
        if self.conv is not None:
            qzv, conv = self.conv.run(qzv, None if state is None else state.conv, call)
        q, k, v, log_decay = self.split(qzv)
        if call.transitions is not None:
            call.transitions.append(decay_transition(log_decay))
        kept = call.with_state(None if state is None else state.attention)
        y, after = linear_attention(wide(q), k, v, log_decay, normalize=False, **kept)
        return self.finish(y, x), None if after is None else MixerState(after, conv, kind=self.kind)

    def split(self, qzv: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and log f (B, T, H, head_dim)."""
        q, z, v = qzv.chunk(3, dim=-1)
        k = self.keys(z)
        # of gates that shut, one rounding is left: a logarithm of 0 has no gradient
        log_decay = torch.log1p(-k.clamp(max=1 - torch.finfo(k.dtype).eps))
        q, k, v, log_decay = (part.unflatten(-1, (self.num_heads, -1)) for part in (F.silu(q), k, v, log_decay))
        return q, k, v, log_decay

    def finish(self, y: Tensor, x: Tensor) -> Tensor:
        """From the sums (B, T, H, head_dim) to the output."""
        projected: Tensor = of_layer(self.out_proj, self.out_norm(y.flatten(2)).to(x.dtype))
        return projected

    def keys(self, z: Tensor) -> Tensor:
        """1 − f (B, T, inner_dim), in float32 at least: of slow decays, 1 − f has more digits than f."""
        open_gates = torch.sigmoid(-wide(z))
        return open_gates if self.bound is None else (1 - self.bound().to(open_gates.dtype)) * open_gates

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_heads, self.head_dim, self.head_dim, dtype=zeros.wide)
        conv = None if self.conv is None else self.conv.state_of(zeros)
        return MixerState(LinearState(recurrent), conv, kind=self.kind)


def shared_bounds(layers: Sequence[Mixer]) -> LowerBounds | None:
    """The bounds of a model with these layers, which know their own from now on; None where no layer has any."""
    bounded = {index: mixer for index, mixer in enumerate(layers) if isinstance(mixer, HGRN2) and mixer.bounded}
    if not bounded:
        return None
    widths = {mixer.inner_dim for mixer in bounded.values()}
    if len(widths) > 1:
        raise ValueError(f"layers of hgrn2 that share bounds must have equally many channels, got {sorted(widths)}")
    bounds = LowerBounds(len(layers), widths.pop())
    for index, mixer in bounded.items():
        if index:  # a first layer has none
            mixer.bound = partial(bounds, index)
    return bounds


register(
    "hgrn2",
    HGRN2,
    "HGRN2: linear attention with a forget gate per key channel that is also its key, bounded below by depth",
    "Qin et al.: HGRN2: Gated Linear RNNs with State Expansion, arXiv 2404.07904, 2024",
)
