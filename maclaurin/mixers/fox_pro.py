"""FoX (Pro): the forgetting transformer in its authors' block.

    k_t ← α_t·k_{t-1} + (1 − α_t)·k_t, α = σ(x·W_α), a share per head; v_t the same with a share of its own
    q, k ← RMS norms per head with learned weights;   y as FoX;   out = W_o·(norm(y per head) ⊙ σ(x·W_g))

The shift of k and v by one token takes the place of a short convolution. The gate is a sigmoid behind the norm, where
`gate=True` of other mixers is SiLU before it. Weights of the norms are per head and channel; the authors' gates that do not
depend on the data, and the skipping of blocks that have decayed, are left out. Their norms of q and k add 1e-5 to the mean
square, those here 1e-6.

Lin et al.: Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130, ICLR 2025.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from maclaurin.mixers.base import Call, MixerState, Zeros, initialise
from maclaurin.mixers.fox import ForgettingAttention
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.conv import short_conv
from maclaurin.ops.products import of_layer
from maclaurin.ops.states import ConvState, State

EPS = 1e-6


class ForgettingPro(ForgettingAttention):
    """Options: those of `Attention`, but for convolutions, shared keys and gates: it has a shift and a gate of its own."""

    has_block = False
    own_gate = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        conv_width: int = 0,
        activation: str = "identity",
        shared_keys: bool | int = False,
        init: str = "torch",
        **options: Any,
    ) -> None:
        if conv_width or activation != "identity":
            raise ValueError(
                "fox-pro shifts k and v in place of a convolution: conv_width must be 0 and activation 'identity', "
                f"got {conv_width} and {activation!r}"
            )
        if shared_keys:
            raise ValueError("shared_keys must be False: fox-pro has a share of the token before per head")
        super().__init__(d_model, num_heads, init=init, **options)
        self.shift_proj = nn.Linear(d_model, 2 * self.num_kv_heads, bias=False)
        self.out_gate_proj = nn.Linear(d_model, self.inner_dim, bias=False)
        self.head_norm_weight = nn.Parameter(torch.ones(num_heads, self.head_dim))
        for module in (self.shift_proj, self.out_gate_proj):
            initialise(module, init)

    @property
    def fused(self) -> dict[str, list[int]]:
        return super().fused | {"shift_proj": [self.num_kv_heads] * 2}

    @property
    def packs(self) -> bool:
        return False  # it shifts keys and values too

    def over_time(self, qkv: Tensor, x: Tensor, before: ConvState | None, call: Call) -> tuple[Tensor, ConvState | None]:
        """k and v, each a mean of its own and of the one before; in front of the first there is zero."""
        q, k, v = qkv.split(self.qkv_sizes, dim=-1)
        kv = torch.cat([k, v], -1)
        last = kv.new_tensor([1.0, 0.0]).expand(kv.shape[-1], 2)  # the taps of a convolution that gives the token before
        shifted, after = short_conv(kv, last, **call.with_state(before))
        share_BTG2 = torch.sigmoid(wide(self.shift_proj(x))).unflatten(-1, (2, self.num_kv_heads)).to(kv.dtype)
        shares = [
            share.repeat_interleave(part.shape[-1] // self.num_kv_heads, dim=-1)
            for share, part in zip(share_BTG2.unbind(-2), (k, v), strict=True)
        ]
        return torch.cat([q, torch.lerp(kv, shifted, torch.cat(shares, -1))], -1), after

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        normed = rms_norm(wide(y_BTHV), (self.head_dim,), eps=EPS) * self.head_norm_weight
        return self.to_output(normed.flatten(2).to(x.dtype) * torch.sigmoid(of_layer(self.out_gate_proj, x)), x)

    def carrying(self, attention: State, zeros: Zeros) -> MixerState:
        kept = super().carrying(attention, zeros)
        return MixerState(
            kept.attention,
            ConvState(zeros(1, sum(self.qkv_sizes[1:]))),
            kept.position,
            rotation=kept.rotation,
            kind=self.kind,
        )


register(
    "fox-pro",
    ForgettingPro,
    "FoX in its authors' block: k and v shifted by a token, normalised queries and keys, an output gate behind a norm",
    "Lin et al.: Forgetting Transformer, 2025",
    order=None,
    decay="forget",
    qk_norm=True,
)
