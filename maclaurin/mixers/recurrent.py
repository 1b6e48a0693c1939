"""Gated recurrences with one number per channel: the quasi-LSTM of DSF, and Griffin's RG-LRU.

    g, u = x·W_in;   u ← conv(u);   h_t = λ_t⊙h_{t-1} + β_t⊙u_t;   out = W_o · (gelu(g_t) ⊙ o_t ⊙ h_t)

    qLSTM                     λ = σ(W_f u)            β = σ(W_i u)                  o = σ(W_o u)
    qLSTM, forget="reversed"  λ = σ(-W_f u)^relu(p)   β = σ(W_i u)                  o = σ(W_o u)
    RG-LRU                    λ = exp(-c·r·softplus(A)), r = σ(W_r u)
                                                      β = √(1-λ²)·σ(W_i u)          o = 1

The qLSTM is an LSTM without its tanh and without its loop through the gates, so that it is linear in h. The reversed
forget gate with its one learnt power p (initially 1) is S6's transition, because exp(-p·softplus(x)) = σ(-x)^p. The block
around it is that of DSF's code, which has more than its formula: inner width 2·d_model, a convolution of width 4, the gelu
gate. That code draws its weights with std fan_in^-½ and then overwrites them with N(0, 0.02), which is `init="llama"`.

RG-LRU: gates in num_heads blocks, c = 8, A such that λ at r = 1 is uniform in [0.9, 0.999], as Griffin says. The authors'
code draws exp(-softplus(A)) from that range, so that its λ start lower, and bounds the slope of the root by 1000. Here 1-λ²
is computed as -expm1(2 log λ), which loses no digits near λ = 1. In their code the first token of a document is not scaled
by √(1-λ²), and the linear layers have biases: `scale_first=False, projection_bias=True`. `conv_width=0, gate=False` leaves
the bare layer.

Sieber et al.: Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731.
De et al.: Griffin, arXiv 2402.19427.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.mixers.base import Call, MixerState, ShortConv, Zeros, advanced, initialise, start_of_parameters
from maclaurin.mixers.registry import register
from maclaurin.mixers.scan_mixer import ScannedMixer
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.gated_scan import gated_scan
from maclaurin.ops.products import of_layer
from maclaurin.ops.scan import linear_scan
from maclaurin.ops.transitions import decay_transition

FORGETS = ("sigmoid", "reversed")
LARGEST_RATE = 8.0  # Griffin's c
FIRST_DECAYS = (0.9, 0.999)  # of channels whose recurrence gate is open


class QLSTM(ScannedMixer):
    """Options. Every channel is a head of its own: num_heads is accepted and changes nothing.

    forget: "sigmoid", or "reversed" for σ(-f)^p with one learnt power p. expand: inner width over d_model.
    conv_width, conv_bias: the causal short convolution before the gates; 0 for none.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        forget: str = "sigmoid",
        expand: int = 2,
        conv_width: int = 4,
        conv_bias: bool = True,
        init: str = "torch",
    ) -> None:
        super().__init__(d_model, num_heads)
        one_of("forget", forget, FORGETS)
        at_least_one("expand", expand)
        at_least(0, "conv_width", conv_width)
        inner = expand * d_model
        self.state_shape = (inner,)
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv = ShortConv(inner, conv_width, conv_bias) if conv_width else None
        self.gate_proj = nn.Linear(inner, 3 * inner)
        self.power = nn.Parameter(torch.ones(())) if forget == "reversed" else None
        self.out_proj = nn.Linear(inner, d_model, bias=False)
        initialise(self, init)

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        gate, u = of_layer(self.in_proj, x).chunk(2, dim=-1)
        u, conv = self.convolved(u, state, call)
        gates = of_layer(self.gate_proj, u)
        f, i, o = gates.chunk(3, dim=-1)
        if call.transitions is not None:
            call.transitions.append(decay_transition(self.log_decay(f)))
        options = call.with_state(None if state is None else state.attention)
        if self.power is None:
            y, after = gated_scan(u, gates, gate, **options)
        else:
            h, after = linear_scan(torch.sigmoid(i) * u, self.log_decay(f), **options)
            y = F.gelu(gate) * torch.sigmoid(o) * h
        y = of_layer(self.out_proj, y)
        return y, None if after is None else MixerState(after, conv, kind=self.kind)

    def log_decay(self, f: Tensor) -> Tensor:
        if self.power is None:
            return F.logsigmoid(wide(f))
        return F.logsigmoid(-wide(f)) * F.relu(wide(self.power))


class RGLRU(ScannedMixer):
    """Options. num_heads: the blocks of the gates' weights.

    width: channels of the recurrence, d_model unless given. conv_width, conv_bias: the causal short convolution; 0 for none.
    gate: multiplies the output by gelu(x·W_g). scale_first: False leaves the first token of a document without the factor
    √(1-λ²); states have their position then. projection_bias: biases on the projections to gate, u and output.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)), of the linear layers; the gates start as in Griffin with
    either.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        width: int | None = None,
        conv_width: int = 4,
        conv_bias: bool = True,
        gate: bool = True,
        scale_first: bool = True,
        projection_bias: bool = False,
        init: str = "torch",
    ) -> None:
        super().__init__(d_model, num_heads)
        if width is not None:
            at_least_one("width", width)
        at_least(0, "conv_width", conv_width)
        channels = width or d_model
        if channels % num_heads:
            raise ValueError(f"width must be a multiple of num_heads, got {channels} and {num_heads}")
        block = channels // num_heads
        self.state_shape = (channels,)
        self.width = channels
        self.scale_first = scale_first
        self.in_proj = nn.Linear(d_model, (1 + gate) * channels, bias=projection_bias)
        self.conv = ShortConv(channels, conv_width, conv_bias) if conv_width else None
        # weights of both gates: the recurrence gate's, then the input gate's
        self.block_weight = nn.Parameter(torch.randn(num_heads, block, 2 * block) * block**-0.5)
        self.block_bias = nn.Parameter(torch.zeros(num_heads, 2 * block))
        # softplus(A) = -log(λ)/c
        rate = -torch.empty(channels, **start_of_parameters()).uniform_(*FIRST_DECAYS).log() / LARGEST_RATE
        self.A = nn.Parameter(rate.expm1().log().to(torch.get_default_dtype()))
        self.out_proj = nn.Linear(channels, d_model, bias=projection_bias)
        initialise(self, init)

    @property
    def whole_because(self) -> None:
        return None

    @property
    def fused(self) -> dict[str, list[int]]:
        (channels,) = self.state_shape
        return {"in_proj": [channels] * (self.in_proj.out_features // channels)}

    def options_of_part(self, parts: int) -> dict[str, Any]:
        return {"width": self.state_shape[0] // parts}

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        *gate, u = of_layer(self.in_proj, x).split(self.state_shape[0], dim=-1)
        u, conv = self.convolved(u, state, call)
        log_decay, input_gate = self.gates(u)
        if call.transitions is not None:
            call.transitions.append(decay_transition(log_decay))
        positions, position = (None, None) if self.scale_first else advanced(state, x, call.lengths)
        h, after = linear_scan(
            (self.input_scale(log_decay, positions) * input_gate * u).to(u.dtype),
            log_decay,
            **call.with_state(None if state is None else state.attention),
        )
        if gate:
            h = h * F.gelu(gate[0], approximate="tanh")
        return of_layer(self.out_proj, h), None if after is None else MixerState(after, conv, position, kind=self.kind)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        position = None if self.scale_first else zeros(dtype=torch.long)
        return replace(super().state_of(tokens, zeros), position=position)

    def input_scale(self, log_decay: Tensor, positions: Tensor | None) -> Tensor:
        """√(1-λ²). positions (B, T): where given, 1 for the tokens at 0."""
        scale = complement(log_decay)
        return scale if positions is None else torch.where(positions[..., None] == 0, 1.0, scale)

    def gates(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """log λ and σ(W_i u), both like u and in float32 at least."""
        blocks = torch.einsum("bthi,hij->bthj", u.unflatten(-1, (self.num_heads, -1)), self.block_weight)
        r, i = (torch.sigmoid(gate).flatten(2) for gate in (wide(blocks) + wide(self.block_bias)).chunk(2, dim=-1))
        return -LARGEST_RATE * r * F.softplus(wide(self.A)), i


def complement(log_decay: Tensor) -> Tensor:
    """√(1-λ²), at least 1e-15 in float32: there the slope of the root is still finite."""
    return torch.expm1(2 * log_decay).neg().clamp(min=torch.finfo(log_decay.dtype).tiny ** 0.8).sqrt()


register(
    "qlstm",
    QLSTM,
    "quasi-LSTM: an LSTM made linear in its state, with a gated block around it",
    "Hochreiter, Schmidhuber: Long Short-Term Memory, 1997; Sieber et al.: DSF, arXiv 2405.15731, 2024",
)
register(
    "rglru",
    RGLRU,
    "RG-LRU: Griffin's gated recurrence, whose input shrinks as its decay slows",
    "De et al.: Griffin, arXiv 2402.19427, 2024",
)
