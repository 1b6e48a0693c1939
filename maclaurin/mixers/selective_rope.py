"""Selective RoPE: rotary angles computed from the tokens, an option of every mixer with queries and keys.

    z = x in one slice per key-value head, each of unit length;   u = z·W;   w = conv(u), silu(conv(u)) or u_t − u_{t−1}
    w ← (w + exp(b)) · σ(gate(z));   Φ_t = Σ_{s<=t} w_s;   A_t = temperature ⊙ Φ_t;   q_t, k_t rotated by A_t

so that scores depend on Σ_{s<r<=t} temperature ⊙ w_r, how far the tokens in between rotate each plane. w = 1 is RoPE, w = 0
no position at all. A difference without gate and bias telescopes to A_t = temperature ⊙ u_t: a phase that depends on the
token alone. The published settings: the defaults for language; `{"rank": 32, "increments": "linear", "gate": "none", "bias":
True, "theta": 1}` for state tracking; `{"rank": 32, "increments": "difference", "temperature": "rfa", "temp_max": 0.25}` for
copying.

Phases are projected in float32 at least, summed and carried in float64, and wrapped only after the temperature. Each
document starts at phase 0, and padding does not rotate. With grouped heads a key-value head and its queries rotate together.
The authors' code sums in float32 over packed documents, approximates sines and cosines in its prefill kernel, cannot decode
with a difference and has no grouped heads. The temperature may be learned, as there, and is frozen by default.

Movahedi, Carstensen et al.: Selective Rotary Position Embedding, arXiv 2511.17388, ICLR 2026.
"""

# B batch, T time, G key-value heads, D = d_model/G, R planes (pairs of channels) per head, C = G·R

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from maclaurin.common.arguments import at_least_one, number, one_of, positive
from maclaurin.mixers.base import AT_ONCE, Call, ShortConv, WideLinear, Zeros
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.conv import short_conv
from maclaurin.ops.decay import widest
from maclaurin.ops.fields import Axes
from maclaurin.ops.states import ConvState, State
from maclaurin.ops.tokens import without_padding

INCREMENTS = ("silu", "linear", "difference")
GATES = ("none", "standard", "low-rank", "gla")
TEMPERATURES = ("rope", "rfa")
CONV_WIDTH = 4
GATE_RANK = 16
UNIT_LENGTH_EPS = 1e-6  # under the root: a token of all zeros has no direction, and its gradient must stay small


@dataclass(frozen=True)
class RotationState(State):
    """How far each plane has rotated, before the temperature, and the last inputs of the convolution.

    Phases are float64 where the device has it.
    """

    phase: Annotated[Tensor, Axes("B G R")]
    conv: ConvState


class SelectiveRotary(nn.Module):
    """Options:

    rank: of the projection to the planes, None for a full one within each head's slice, of unit columns times a scalar.
    increments: "silu" or "linear", of a causal convolution over 4 tokens, or "difference" for u_t − u_{t−1}.
    gate: of the increments, "standard" (one per head), "low-rank" (the same through 16 channels), "gla" (one per plane
    through 16 channels) or "none". bias: adds exp(b), initially 1.
    temperature: "rope" for theta^(−j/R), theta 500000 unless given; "rfa" for tan(a_j/2) with a_j from 0 to theta·π, theta
    0.9999 unless given. temp_max: the temperature of the fastest plane. learn_temperature: one per plane, for all heads,
    which starts so.
    identity_conv: the convolution starts as the identity plus N(0, 0.02), so that the initial rotations are temperature ⊙
    u_t with almost nothing of earlier tokens.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        planes: int,
        *,
        rank: int | None = None,
        increments: str = "silu",
        gate: str = "standard",
        bias: bool = False,
        temperature: str = "rope",
        theta: float | None = None,
        temp_max: float = 1.0,
        learn_temperature: bool = False,
        identity_conv: bool = False,
    ) -> None:
        super().__init__()
        one_of("increments", increments, INCREMENTS)
        one_of("gate", gate, GATES)
        if rank is not None:
            at_least_one("rank", rank)
        if d_model % heads:
            raise ValueError(
                f"rotary='selective' cuts d_model into a slice for each key-value head, got {d_model} for {heads} heads"
            )
        if identity_conv and increments == "difference":
            raise ValueError(
                "identity_conv=True needs a convolution: increments must be 'silu' or 'linear', got 'difference'"
            )
        self.heads, self.planes = heads, planes
        self.increments = increments
        self._set_temperature(temperature, theta, temp_max)
        self.speed = nn.Parameter(self.initial_speed("cpu").float()) if learn_temperature else None

        channels = heads * planes
        self.proj: nn.Module
        if rank is None:
            self.proj = _UnitColumns(heads, d_model // heads, planes)
        else:
            self.proj = nn.Sequential(WideLinear(d_model, rank, bias=False), WideLinear(rank, channels, bias=False))
        self.conv = None if increments == "difference" else ShortConv(channels, CONV_WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, planes)) if bias else None
        self.gate: nn.Module | None = None
        if gate == "standard":
            self.gate = WideLinear(d_model, heads)
        elif gate != "none":
            gates = heads if gate == "low-rank" else channels
            self.gate = nn.Sequential(WideLinear(d_model, GATE_RANK, bias=False), WideLinear(GATE_RANK, gates))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d)):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if identity_conv and self.conv is not None:
            with torch.no_grad():
                self.conv.weight[..., -1] += 1

    def _set_temperature(self, temperature: str, theta: float | None, temp_max: float) -> None:
        one_of("temperature", temperature, TEMPERATURES)
        number("theta", theta)
        positive("temp_max", temp_max)
        if theta is None:
            theta = 500000.0 if temperature == "rope" else 0.9999
        if temperature == "rope" and theta < 1:
            raise ValueError(f"theta must be at least 1 for temperature='rope', got {theta}")
        if temperature == "rfa" and not 0 < theta < 1:
            raise ValueError(f"theta must lie between 0 and 1 for temperature='rfa', got {theta}")
        if temperature == "rfa" and self.planes < 2:
            raise ValueError(
                "temperature='rfa' spreads speeds over the pairs of a head: it needs 4 key channels or more, got 2"
            )
        self.temperature, self.theta, self.temp_max = temperature, theta, temp_max

    @without_autocast
    def forward(
        self, x: Tensor, state: RotationState | None = None, call: Call = AT_ONCE
    ) -> tuple[Tensor, RotationState | None]:
        """The angles (B, T, G, R) of tokens x (B, T, d_model), within ±π, and the state after the last of them."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        z_BTGD = x.to(dtype).unflatten(-1, (self.heads, -1))
        z_BTGD = z_BTGD * (z_BTGD.square().sum(-1, keepdim=True) + UNIT_LENGTH_EPS).rsqrt()
        z = z_BTGD.flatten(2)
        u_BTC = self.proj(z)
        before = None if state is None else state.conv
        if self.conv is None:
            taps = u_BTC.new_tensor([-1.0, 1.0]).expand(u_BTC.shape[2], 2)
            w_BTC, conv = short_conv(u_BTC, taps, state=before, form=call.form, lengths=call.lengths)
        else:
            activation = "silu" if self.increments == "silu" else "identity"
            w_BTC, conv = self.conv.run(u_BTC, before, call, activation)
        w = w_BTC.unflatten(-1, (self.heads, self.planes))
        if self.bias is not None:
            w = w + self.bias.to(dtype).exp()
        if self.gate is not None:
            w = w * torch.sigmoid(self.gate(z)).unflatten(-1, (self.heads, -1))
        phase = without_padding(w, call.lengths).to(widest(x.device)).cumsum(1)
        if state is not None:
            phase = phase + state.phase[:, None]
        angles = phase * self.temperatures(x.device)
        return _wrapped(angles).to(dtype), None if conv is None else RotationState(phase[:, -1].clone(), conv)

    def temperatures(self, device: torch.device | str) -> Tensor:
        """The speed of each plane (R,), in the widest dtype: a rounded speed would give wrong angles far from the start."""
        if self.speed is not None:
            return self.speed.to(widest(torch.device(device)))
        return self.initial_speed(device)

    def initial_speed(self, device: torch.device | str) -> Tensor:
        wide = widest(torch.device(device))
        if self.temperature == "rope":
            planes = torch.arange(self.planes, dtype=wide, device=device)
            return self.temp_max * self.theta ** (-planes / self.planes)
        speed = (torch.linspace(0, self.theta * math.pi, self.planes, dtype=wide, device=device) / 2).tan()
        return self.temp_max * speed / speed[-1]

    def state_of(self, zeros: Zeros) -> RotationState:
        phase = zeros(self.heads, self.planes, dtype=widest(torch.device(zeros.device)))
        return RotationState(phase, ConvState(zeros(self._remembered, self.heads * self.planes, dtype=zeros.wide)))

    @property
    def _remembered(self) -> int:
        """How many tokens the increments look back."""
        return 1 if self.conv is None else CONV_WIDTH - 1


class _UnitColumns(nn.Module):
    """One matrix (D, R) per head, its columns of unit length, times one scalar per head."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs).uniform_(-1, 1))
        self.scale = nn.Parameter(torch.ones(heads))

    def forward(self, x: Tensor) -> Tensor:
        weight_GDR = normalize(self.weight.to(x.dtype), dim=1) * self.scale.to(x.dtype)[:, None, None]
        return torch.einsum("btgd,gdr->btgr", x.unflatten(-1, weight_GDR.shape[:2]), weight_GDR).flatten(2)


SELECTIVE_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(SelectiveRotary).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)


def _wrapped(angles: Tensor) -> Tensor:
    """Angles without their whole turns, so that a narrower dtype keeps them exact."""
    turns = (angles.detach() / math.tau).round()
    return angles - turns * math.tau
