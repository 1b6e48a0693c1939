"""The delta rule: a token corrects the value that the state holds for its key, where attention only adds to the state.

    q, k, v = silu(conv(x·W_qkv));  q, k ← q/|q|, k/|k|;  β = σ(x·W_β);  a = −exp(A_log)·softplus(x·W_dt + bias)
    S_t = (I − β_t φ(k_t)φ(k_t)ᵀ) exp(a_t)·S_{t-1} + β_t φ(k_t) v_tᵀ;   y_t = S_tᵀφ(q_t)
    out = W_o · (norm(y) ⊙ silu(x·W_z))

`delta` is DeltaNet: φ is the identity, no decay, no gate. `gated-delta` is Gated DeltaNet, with both. It decays the state
before correcting it; a decay per head commutes with the correction. With `decay="channel", dt_bias=False` it has one decay
per key channel, which is a row of the state: the mechanism of Kimi Delta Attention.

`2mamba-delta` is the delta rule on the features of 2Mamba, φ(k) = the symmetric square with d(d+1)/2 entries, behind its
softplus decay and its convolution without activation. |k| = 1 makes |φ(k)|² = (k·k)² = 1, so it is as stable as the first
order, and it can hold d(d+1)/2 associations exactly where the first order holds d (docs/maths.md). 2Mamba divides by the sum
of its weights; those of the delta rule have both signs and a sum that may vanish, so each head's output is normalised
instead, and the length of q cancels.

What the authors' code (flash-linear-attention) does differently: q is scaled by 1/√d, which cancels in the norm except
for its epsilon; q, k and v have a convolution each, here one runs over all three; rotary positions, which they do not
have, rotate q and k before these are normalised. Published variants: `allow_negative_eigenvalues=True` (Grazzi et al.),
`gate=True` for `delta`, `num_heads` = 3/4·d_model/`key_dim` with `head_dim` = 2·`key_dim` for the sizes of Gated DeltaNet.

Schlag, Irie, Schmidhuber: Linear Transformers Are Secretly Fast Weight Programmers, arXiv 2102.11174, 2021.
Yang et al.: Parallelizing Linear Transformers with the Delta Rule over Sequence Length, arXiv 2406.06484, 2024.
Yang, Kautz, Hatamizadeh: Gated Delta Networks: Improving Mamba2 with Delta Rule, arXiv 2412.06464, 2024.
Kimi Team: Kimi Linear: An Expressive, Efficient Attention Architecture, arXiv 2510.26692, 2025.
Grazzi et al.: Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues, arXiv 2411.12537, 2024.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.mixers.attention import PAPER_2
from maclaurin.mixers.base import Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.delta import delta_rule
from maclaurin.ops.features import monomial_count
from maclaurin.ops.states import DeltaState
from maclaurin.ops.transitions import delta_transition

NORMS = ("head", "none")
# under the root, as in the authors' code: the gradient at a key of zeros is bounded, and no key is longer than 1
LENGTH_EPS = 1e-6


class Delta(ProjectedMixer):
    """Options beside those of every projected mixer:

    order: of the features of q and k: 1 for q and k themselves, 2 for their symmetric squares. decay="channel" needs 1.
    allow_negative_eigenvalues: β = 2σ(x·W_β), so that a token may flip the sign of what the state holds for its key.
    norm: "head" is an RMS norm of each head's output with norm_eps, before the gate, or "none".
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    decays_per_channel = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        order: int = 1,
        allow_negative_eigenvalues: bool = False,
        norm: str = "head",
        norm_eps: float = 1e-5,
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        at_least_one("order", order)
        if self.decay == "channel" and order != 1:
            raise ValueError(f"decay='channel' needs order 1, got {order}")
        one_of("norm", norm, NORMS)
        self.order = order
        self.largest_beta = 2.0 if allow_negative_eigenvalues else 1.0
        self.beta_proj = nn.Linear(d_model, self.num_kv_heads, bias=False)
        self.out_norm = RMSNorm(self.head_dim, norm_eps) if norm == "head" else None
        self.add_skip_and_gate()
        initialise(self, init)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        beta = self.beta_proj(x)
        beta = self.largest_beta * torch.sigmoid(beta.to(torch.promote_types(beta.dtype, torch.float32)))
        k = unit(p.k)
        if call.transitions is not None:
            call.transitions.append(delta_transition(k, beta, p.log_decay, order=self.order))
        y, after = delta_rule(
            unit(p.q),
            k,
            p.v,
            beta,
            p.log_decay,
            order=self.order,
            scale=1.0,
            **call.with_state(None if state is None else state.attention),
        )
        return self.finish(self.with_skip(y, p), x), self.state_after(p, after)

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        return super().finish(y_BTHV if self.out_norm is None else self.out_norm(y_BTHV), x)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_kv_heads, monomial_count(self.key_dim, self.order), self.head_dim, dtype=zeros.wide)
        return self.carrying(DeltaState(recurrent), zeros)


def unit(x: Tensor) -> Tensor:
    """x at unit length, in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() + LENGTH_EPS)


register(
    "delta",
    Delta,
    "DeltaNet: each token corrects the value that the state holds for its key",
    "Schlag et al.: Linear Transformers Are Secretly Fast Weight Programmers, 2021; "
    "Yang et al.: Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024",
    conv_width=4,
    conv_bias=False,
    activation="silu",
)
register(
    "gated-delta",
    Delta,
    "Gated DeltaNet: the delta rule behind a decay, with an output gate",
    "Yang et al.: Gated Delta Networks: Improving Mamba2 with Delta Rule, 2024",
    conv_width=4,
    conv_bias=False,
    activation="silu",
    decay="mamba",
    dt_bias=True,
    gate=True,
)
register(
    "2mamba-delta",
    Delta,
    "the delta rule on the squared scores of 2Mamba, behind its softplus decay",
    "defined here, on the features of " + PAPER_2 + "; Yang et al.: Gated Delta Networks, 2024",
    order=2,
    conv_width=2,
    decay="softplus",
)
