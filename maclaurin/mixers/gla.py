"""Gated linear attention: first order behind a decay per key channel, which is a low-rank function of the token.

    q, k, v = x·W_qkv;   log α_t = logsigmoid(x_t·W₁·W₂ + b)/τ;   S_t = diag(α_t) S_{t-1} + k_t v_tᵀ
    y_t = q_t S_t / √d_k;   out = W_o · (RMSNorm(y) per head ⊙ silu(x·W_g))

The published layer is the default: keys half as wide as values, rank 16, τ = 16, no convolution, no positions. Its code has
one norm weight for all heads, as here, and an optional short convolution (`conv_width=4, activation="silu"`).

With rotary positions the state is rotated as well as decayed, diag(α) R(θ). Decay and rotation commute, so that only
relative positions matter, exactly if α is equal within each rotary pair: `tie_decay_pairs`. Published runs leave it untied.

Yang et al.: Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv 2312.06635.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, positive
from maclaurin.mixers.base import Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.mechanisms import Linear
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.states import LinearState


class GLA(ProjectedMixer):
    """Options beside those of every projected mixer (key_dim is half of head_dim unless given):

    decay_rank: of the map from a token to its decays. tau: divides the log decay, so α = sigmoid(…)^(1/tau).
    tie_decay_pairs: one decay for both channels of a rotary pair. norm_eps: of the norm of each head's output.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    bidirectional = True
    key_divisor = 2

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        decay_rank: int = 16,
        tau: float = 16.0,
        tie_decay_pairs: bool = False,
        norm_eps: float = 1e-5,
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        at_least_one("decay_rank", decay_rank)
        positive("tau", tau)
        if self.decay != "none":
            raise ValueError(f"decay must be 'none', because gla has its own decay per key channel, got {self.decay!r}")
        if tie_decay_pairs and self.key_dim % 2:
            raise ValueError(f"tie_decay_pairs=True needs an even key_dim, got {self.key_dim}")
        if tie_decay_pairs and self.rotary_dim is not None:
            raise ValueError(f"tie_decay_pairs=True needs pairs that all turn, got rotary_dim={self.rotary_dim}")
        self.tau = tau
        self.tie_decay_pairs = tie_decay_pairs
        decays = self.num_kv_heads * (self.key_dim // 2 if tie_decay_pairs else self.key_dim)
        self.decay_down = nn.Linear(d_model, decay_rank, bias=False)
        self.decay_up = nn.Linear(decay_rank, decays)
        self.add_skip_and_gate()
        self.out_norm = RMSNorm(self.head_dim, norm_eps)
        initialise(self, init)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        y, after = self.mechanism(wide(p.q), p.k, p.v, p.log_decay, None if state is None else state.attention, call)
        return self.finish(self.with_skip(y, p), x), self.state_after(p, after)

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        return super().finish(self.out_norm(y_BTHV), x)

    @property
    def packs(self) -> bool:
        return self.causal and not self._needs_position and self.selective is None

    @property
    def mechanism(self) -> Linear:
        return Linear(normalize=False, causal=self.causal)

    def log_decay(self, x: Tensor, dt: Tensor | None = None) -> Tensor:
        """log α (B, T, G, key_dim), in float32 at least."""
        logits: Tensor = self.decay_up(self.decay_down(x)).unflatten(-1, (self.num_kv_heads, -1))
        decays = log_sigmoid_decay(logits, self.tau)
        if not self.tie_decay_pairs:
            return decays
        if self.rotary_interleaved:
            return decays.repeat_interleave(2, dim=-1)
        return torch.cat([decays, decays], dim=-1)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_kv_heads, self.key_dim, self.head_dim, dtype=zeros.wide)
        return self.carrying(LinearState(recurrent), zeros)


def log_sigmoid_decay(logits: Tensor, tau: float) -> Tensor:
    """log σ(logits)^(1/τ), in float32 at least: it is an exponent, and bfloat16 would round it to three digits."""
    return F.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32))) / tau


register(
    "gla",
    GLA,
    "gated linear attention: first order behind a low-rank decay per key channel, head norm, output gate",
    "Yang et al.: Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv 2312.06635, 2023",
    gate=True,
)
