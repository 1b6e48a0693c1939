"""S6, the selective state space layer at the core of Mamba, by itself and in Mamba's block.

    r, b, c = x·W_x;   dt = softplus(r·W_dt + bias);   h_t = exp(-dt_t·exp(A_log))⊙h_{t-1} + (dt_t⊙x_t) b_tᵀ
    out = W_o · (h_t c_t + D⊙x_t)                      h_t a matrix (d_model, d_state)

As a dynamical system (DSF) every entry of h has an eigenvalue exp(-dt·exp(A_log)) in (0, 1) of its own, where attention has
one per head; and dt occurs both in the eigenvalue and in the input, so it cannot be factored out as attention's normaliser
can. There is no convolution, no activation and no gate around it: DSF's comparison leaves them out. `mamba` has them:

    z, x = u·W_in;   x = silu(conv(x));   out = W_o · (S6(x) ⊙ silu(z))

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
from maclaurin.mixers.base import AT_ONCE, Call, MixerState, ShortConv, WideLinear, initial_dt_bias, initialise
from maclaurin.mixers.registry import register
from maclaurin.mixers.scan_mixer import ScannedMixer
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.products import of_layer
from maclaurin.ops.selective import selective_scan
from maclaurin.ops.states import ConvState, ScanState


class S6(ScannedMixer):
    """Options. Every channel is a head of its own: num_heads is accepted and changes nothing.

    d_state: size of the state per channel. dt_rank: channels between x and dt, d_model / 16 rounded up unless given.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)); dt, A_log and D start as in Mamba with either.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, d_state: int = 16, dt_rank: int | None = None, init: str = "torch"
    ) -> None:
        super().__init__(d_model, num_heads)
        self.conv = None
        self._set_core(d_model, d_state, dt_rank, init)

    def _set_core(self, width: int, d_state: int, dt_rank: int | None, init: str) -> None:
        """All weights from x on, for an x of so many channels."""
        at_least_one("d_state", d_state)
        if dt_rank is not None:
            at_least_one("dt_rank", dt_rank)
        self.dt_rank = dt_rank or math.ceil(self.d_model / 16)
        self.d_state = d_state
        self.state_shape = (width, d_state)

        self.x_proj = nn.Linear(width, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = WideLinear(self.dt_rank, width)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, self.d_model, bias=False)
        initialise(self, init)
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(self.dt_rank**-0.5), self.dt_rank**-0.5)
            self.dt_proj.bias.copy_(initial_dt_bias(width))

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        y, after = self.scan(x, state, call)
        return of_layer(self.out_proj, y), None if after is None else MixerState(after, kind=self.kind)

    def scan(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, ScanState | None]:
        """What the output is projected from, and the state of the recurrence."""
        r, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt, rate = self.time_step(r), wide(self.A_log).exp()
        if call.transitions is not None:
            call.transitions.append(-dt.sum(1)[..., None] * rate)
        y, after = selective_scan(
            x,
            dt,
            rate,
            b,
            c,
            **call.with_state(None if state is None else state.attention),
        )
        return torch.addcmul(y, x, self.D.to(y.dtype)), after

    def time_step(self, r: Tensor) -> Tensor:
        """dt (B, T, d_model) in float32 at least: bfloat16 would round the bias to three digits."""
        return F.softplus(self.dt_proj(wide(r)))


class Mamba(S6):
    """Options beside those of S6: expand, inner width over d_model; conv_width, conv_bias: the causal short convolution."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        expand: int = 2,
        d_state: int = 16,
        dt_rank: int | None = None,
        conv_width: int = 4,
        conv_bias: bool = True,
        init: str = "torch",
    ) -> None:
        ScannedMixer.__init__(self, d_model, num_heads)
        at_least_one("expand", expand)
        at_least_one("conv_width", conv_width)
        inner = expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv = ShortConv(inner, conv_width, conv_bias)
        self._set_core(inner, d_state, dt_rank, init)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        u, gate, conv = self.project(x, None if state is None else state.conv, call)
        y, after = self.scan(u, state, call)
        y = of_layer(self.out_proj, (y * gate).to(x.dtype))
        return y, None if after is None else MixerState(after, conv, kind=self.kind)

    def project(
        self, x: Tensor, conv: ConvState | None = None, call: Call = AT_ONCE
    ) -> tuple[Tensor, Tensor, ConvState | None]:
        """What enters the recurrence, the gate, and the state of the convolution."""
        assert self.conv is not None
        u, gate = of_layer(self.in_proj, x).chunk(2, dim=-1)
        u, conv = self.conv.run(u, conv, call, activation="silu")
        return u, F.silu(gate), conv


register(
    "mamba",
    Mamba,
    "Mamba: S6 in its block, with a short convolution and an output gate",
    "Gu, Dao: Mamba, arXiv 2312.00752, 2023",
)
register(
    "s6",
    S6,
    "S6: Mamba's selective state space core, a decay per channel and state dimension",
    "Gu, Dao: Mamba, 2023; as compared in Sieber et al.: DSF, arXiv 2405.15731, 2024",
)
