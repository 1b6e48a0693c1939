"""S6, the selective state space layer at the core of Mamba, by itself.

    r, b, c = x·W_x;   dt = softplus(r·W_dt + bias);   h_t = exp(-dt_t·exp(A_log))⊙h_{t-1} + (dt_t⊙x_t) b_tᵀ
    out = W_o · (h_t c_t + D⊙x_t)                      h_t a matrix (d_model, d_state)

As a dynamical system (DSF) every entry of h has an eigenvalue exp(-dt·exp(A_log)) in (0, 1) of its own, where attention has
one per head; and dt occurs both in the eigenvalue and in the input, so it cannot be factored out as attention's normaliser
can. There is no convolution, no activation and no gate around it: Mamba's block has them, DSF's comparison leaves them out.

Parameters carry Mamba's names, and its initialisation: exp(A_log) = 1, …, d_state in every channel, softplus of the bias
log-uniform between 1e-3 and 0.1, D = 1. DSF's code means to do the same, but its global initialisation then zeroes the bias,
so that dt starts at 0.69 and everything is forgotten within a few tokens.

Gu, Dao: Mamba, arXiv 2312.00752. Sieber et al.: Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.base import Call, MixerState, WideLinear, initial_dt_bias, initialise
from maclaurin.mixers.registry import register
from maclaurin.mixers.scan_mixer import ScannedMixer
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.selective import selective_scan


class S6(ScannedMixer):
    """Options. Every channel is a head of its own: num_heads is accepted and changes nothing.

    d_state: size of the state per channel. dt_rank: channels between x and dt, d_model / 16 rounded up unless given.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)); dt, A_log and D start as in Mamba with either.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, d_state: int = 16, dt_rank: int | None = None, init: str = "torch"
    ) -> None:
        super().__init__(d_model, num_heads)
        at_least_one("d_state", d_state)
        if dt_rank is not None:
            at_least_one("dt_rank", dt_rank)
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        self.d_state = d_state
        self.state_shape = (d_model, d_state)
        self.conv = None

        self.x_proj = nn.Linear(d_model, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = WideLinear(self.dt_rank, d_model)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_model, 1))
        self.D = nn.Parameter(torch.ones(d_model))
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        initialise(self, init)
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(self.dt_rank**-0.5), self.dt_rank**-0.5)
            self.dt_proj.bias.copy_(initial_dt_bias(d_model))

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        r, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        y, after = selective_scan(
            x,
            self.time_step(r),
            wide(self.A_log).exp(),
            b,
            c,
            **call.with_state(None if state is None else state.attention),
        )
        y = self.out_proj(torch.addcmul(y, x, self.D.to(y.dtype)))
        return y, None if after is None else MixerState(after, kind=self.kind)

    def time_step(self, r: Tensor) -> Tensor:
        """dt (B, T, d_model) in float32 at least: bfloat16 would round the bias to three digits."""
        return F.softplus(self.dt_proj(wide(r)))


register(
    "s6",
    S6,
    "S6: Mamba's selective state space core, a decay per channel and state dimension",
    "Gu, Dao: Mamba, 2023; as compared in Sieber et al.: DSF, arXiv 2405.15731, 2024",
)
