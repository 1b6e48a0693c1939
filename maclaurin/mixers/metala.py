"""MetaLA: linear attention whose decay is also its key, so that a token writes as much as it erases.

    x ← silu(conv(x));   q, a, v = x·W_q, x·W_α, x·W_v;   log α_t = logsigmoid(a_t)/τ;   k_t = 1 − α_t
    S_t = diag(α_t) S_{t-1} + k_t v_tᵀ;   o_t = q_t S_t/√d_k + aug(s_t, v_t),   s_t = q_t·(w ⊙ k_t)
    out = W_o · (silu(x·W_g + b) ⊙ LayerNorm(o) per head)

aug, the token's own term, never enters the state: "code" σ(s·v) is what the authors run, "linear" s·v the paper's parallel
formula, "gate" σ(s)·v keeps the sign of v. w starts at 0, where "code" adds the constant ½ that the LayerNorm removes again.

The authors' code runs causal language models only; its kernel scales q by 1/√d_k, which the paper leaves out, but not the q
of the augmentation. Over whole sequences (causal=False) the recurrence runs both ways, a token's weight on itself counted
once; the short convolution stays causal. Variants: recall tasks `key_dim=head_dim, conv_width=2`; the ablations `aug="off"`,
`conv_width=0, activation="identity"` and `own_key=True`. τ = 16 keeps α above 0.73 for logits above −5: a token that
must overwrite the state at once needs a smaller τ.

Chou et al.: MetaLA: Unified Optimal Linear Approximation to Softmax Attention Map, arXiv 2411.10741.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one, one_of, positive
from maclaurin.mixers.base import AT_ONCE, Call, Mixer, MixerState, ShortConv, Zeros, initialise
from maclaurin.mixers.gla import log_sigmoid_decay
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.conv import ACTIVATIONS
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.products import of_layer
from maclaurin.ops.states import ConvState, LinearState
from maclaurin.ops.transitions import decay_transition

AUGMENTATIONS = ("off", "code", "linear", "gate")


class MetaLA(Mixer):
    """Options:

    aug: a token's own term, "off", "code" σ(s·v), "linear" s·v or "gate" σ(s)·v. tau: divides the log decay.
    own_key: a separate key projection in place of k = 1 − α. head_dim: d_model / num_heads. key_dim: half of head_dim.
    conv_width, conv_bias: the causal short convolution over x; 0 for none. activation: "silu" on x after it, or "identity".
    norm_eps: of the norm of each head's output. init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    bidirectional = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        aug: str = "code",
        tau: float = 16.0,
        own_key: bool = False,
        head_dim: int | None = None,
        key_dim: int | None = None,
        conv_width: int = 4,
        conv_bias: bool = False,
        activation: str = "silu",
        norm_eps: float = 1e-5,
        init: str = "torch",
        causal: bool = True,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        one_of("aug", aug, AUGMENTATIONS)
        one_of("activation", activation, ACTIVATIONS)
        positive("tau", tau)
        if head_dim is None and d_model % num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads unless head_dim is given, got {d_model} and {num_heads}"
            )
        for name, given in (("head_dim", head_dim), ("key_dim", key_dim)):
            if given is not None:
                at_least_one(name, given)
        at_least(0, "conv_width", conv_width)
        self.aug = aug
        self.tau = tau
        self.activation = activation
        self.norm_eps = norm_eps
        self.head_dim = head_dim or d_model // num_heads
        self.key_dim = key_dim or max(1, self.head_dim // 2)

        keys, values = num_heads * self.key_dim, num_heads * self.head_dim
        self.in_sizes = [keys, keys, values, *([keys] if own_key else [])]
        self.conv = ShortConv(d_model, conv_width, conv_bias) if conv_width else None
        self.in_proj = nn.Linear(d_model, sum(self.in_sizes), bias=False)  # q, decay, v, and k where it is its own
        self.gate_proj = nn.Linear(d_model, values)
        self.aug_weight = nn.Parameter(torch.zeros(num_heads, self.key_dim)) if aug != "off" else None
        self.out_proj = nn.Linear(values, d_model, bias=False)
        initialise(self, init)

    @property
    def folds(self) -> bool:
        return self.causal

    @property
    def whole_because(self) -> None:
        return None

    @property
    def fused(self) -> dict[str, list[int]]:
        return {"in_proj": self.in_sizes}

    def options_of_part(self, parts: int) -> dict[str, Any]:
        return {"head_dim": self.head_dim, "key_dim": self.key_dim}

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        x, conv = self.convolved(x, None if state is None else state.conv, call)
        q, k, v, log_decay = self.project(x)
        if call.transitions is not None:
            call.transitions.append(decay_transition(log_decay))
        kept = call.with_state(None if state is None else state.attention)
        y, after = linear_attention(wide(q), k, v, log_decay, normalize=False, causal=self.causal, **kept)
        if self.aug_weight is not None:
            y = y + self.augmentation(q, k, v, self.aug_weight)
        return self.finish(y, x), None if after is None else MixerState(after, conv, kind=self.kind)

    def convolved(self, x: Tensor, conv: ConvState | None = None, call: Call = AT_ONCE) -> tuple[Tensor, ConvState | None]:
        if self.conv is not None:
            return self.conv.run(x, conv, call, activation=self.activation)
        return F.silu(x) if self.activation == "silu" else x, None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and log α (B,T,H,…) of what was convolved."""
        parts = of_layer(self.in_proj, x).split(self.in_sizes, dim=-1)
        q, decay_logits, v, *own_key = (part.unflatten(-1, (self.num_heads, -1)) for part in parts)
        log_decay = log_sigmoid_decay(decay_logits, self.tau)
        # expm1, because 1 − α of a decay near 1 would keep only its last digits
        return q, own_key[0] if own_key else -torch.expm1(log_decay), v, log_decay

    def finish(self, y: Tensor, x: Tensor) -> Tensor:
        """The output of the recurrence (B,T,H,V) normalised, gated by what was convolved, and projected."""
        y = F.layer_norm(y, (self.head_dim,), eps=self.norm_eps).flatten(2) * F.silu(of_layer(self.gate_proj, x))
        projected: Tensor = of_layer(self.out_proj, y.to(x.dtype))
        return projected

    def augmentation(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        """A token's own term."""
        score = (q * k * weight).sum(-1, keepdim=True)
        if self.aug == "code":
            return torch.sigmoid(score * v)
        return score * v if self.aug == "linear" else torch.sigmoid(score) * v

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_heads, self.key_dim, self.head_dim, dtype=zeros.wide)
        conv = None if self.conv is None else self.conv.state_of(zeros)
        return MixerState(LinearState(recurrent), conv, kind=self.kind)


register(
    "metala",
    MetaLA,
    "MetaLA: linear attention with a decay per key channel that is also its key, short convolution, gate",
    "Chou et al.: MetaLA: Unified Optimal Linear Approximation to Softmax Attention Map, arXiv 2411.10741, 2024",
)
