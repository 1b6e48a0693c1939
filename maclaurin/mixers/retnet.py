"""RetNet: linear attention behind a fixed decay per head, with rotary positions, a head norm and an output gate.

    q, k, v = x·W_qkv, q and k rotated by position;   γ_h = 1 − 1/n_h, n_h from 32 to 512 in equal ratios
    S_t = γ S_{t-1} + k_t v_tᵀ;   y_t = q_t S_t/√d;   out = W_o · (norm(y) ⊙ silu(x·W_g))

The authors' code scales keys where this scales queries, divides by the root of the summed decays and by max(|Σ w|, 1), which
cancels in each head's norm except for its epsilon, and has values of twice the width: `head_dim=2 * key_dim`. The paper's
decays, which fla has too, are `decays="doubling"`: n_h = 32·2^h.

Sun et al.: Retentive Network: A Successor to Transformer for Large Language Models, arXiv 2307.08621, 2023.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.arguments import one_of
from maclaurin.mixers.base import Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.mechanisms import Linear
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.states import LinearState

DECAYS = ("spread", "doubling")


class RetNet(ProjectedMixer):
    """Options beside those of every projected mixer:

    decays: 1 − 1/n with n from 32 to 512 in equal ratios ("spread"), or n = 32·2^h for head h ("doubling").
    norm_eps: of the norm of each head's output. init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    bidirectional = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        decays: str = "spread",
        norm_eps: float = 1e-5,
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("decays", decays, DECAYS)
        self.decays = decays
        if self.decay != "none":
            raise ValueError(f"decay must be 'none', because retnet has its own fixed decays, got {self.decay!r}")
        self.add_skip_and_gate()
        self.out_norm = RMSNorm(self.head_dim, norm_eps)
        initialise(self, init)

    @property
    def mechanism(self) -> Linear:
        return Linear(normalize=False, causal=self.causal)

    def log_decay(self, x: Tensor, dt: Tensor | None) -> Tensor:
        own, parts = self.part
        heads = parts * self.num_kv_heads
        last = math.log(512) if self.decays == "spread" else math.log(32) + math.log(2) * (heads - 1)
        log_n = torch.linspace(math.log(32), last, heads, dtype=torch.float64, device=x.device)
        return torch.log1p(-torch.exp(-log_n.chunk(parts)[own])).to(wide(x).dtype).expand(*x.shape[:2], -1)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        y, after = self.mechanism(wide(p.q), p.k, p.v, p.log_decay, None if state is None else state.attention, call)
        return self.finish(self.out_norm(self.with_skip(y, p)), x), self.state_after(p, after)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        return self.carrying(LinearState(zeros(self.num_kv_heads, self.key_dim, self.head_dim, dtype=zeros.wide)), zeros)


summary = "RetNet: first order behind a fixed decay per head, head norm, output gate"
register("retnet", RetNet, summary, "Sun et al.: Retentive Network, arXiv 2307.08621, 2023", rotary="rope", gate=True)
