"""LUNA: linear attention over features whose nonlinearity is learnt, channel by channel.

    φ(x) = h(x')/√m · [ψ_l(w_i·x' + b_i)],  i = 1..m,  l = 1..L,  x' = x/d^(1/4)
    y_t  = Σ_s φ(q_t)·φ(k_s) v_s / Σ_s φ(q_t)·φ(k_s)

W (m x d) and b are shared by all heads, queries and keys, so that the kernel φ(x)·φ(y) is symmetric and positive
semi-definite. ψ is a two-layer network of one number, ending in a ReLU: weights are not negative, and outputs are averages
of values. A ReLU network of one number is piecewise linear and is looked up in a table (`ops/piecewise.py`).

The envelope h(x) = exp(clip(u·x + c − a|x|²/2, ±10)) is initially 1. ψ = exp, L = 1, a = 1 and Gaussian W give Performer;
ψ = (cos, sin) random Fourier features: `LunaMap` takes any module as ψ.

Shahbazi et al., arXiv 2512.08061; no published code was found. The paper's listing has no envelope and leaves open how q
and k are scaled, m and L, and what is added to the sum of the weights: here d^(-1/4) each, 16 x 8 for keys of up to 32
channels and max(32, d/2) x 4 beyond, and nothing. Its `ch_rms` takes statistics over the batch, here over one sequence, so
that sequences stay independent. A separate W per head would be a variant; here all heads share one.
Not to be confused with "Luna: Linear Unified Nested Attention" (2021).
"""

# B batch, T time, H heads, K key channels, M projections, L channels

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.feature_maps import FeatureMap, in_float32, scaled
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.piecewise import scalar_mlp
from maclaurin.ops.products import linear
from maclaurin.ops.tokens import without_padding

BANKS = ("separate", "shared")
ENVELOPE_LIMIT = 10.0
RMS_TARGET, RMS_EPS = 0.1, 1e-6


class ChannelBank(nn.Module):
    """ψ: u (...) -> (..., num_channels), one network per channel ("separate") or one for all of them ("shared")."""

    def __init__(
        self, num_channels: int, *, bank: str = "separate", width: int = 64, nonneg: bool = True, softplus: bool = False
    ) -> None:
        super().__init__()
        one_of("bank", bank, BANKS)
        at_least_one("channel_width", width)
        if softplus and not nonneg:
            raise ValueError("softplus=True takes the place of the last ReLU, which nonneg=False leaves out")
        self.num_channels = num_channels
        self.nonneg = nonneg
        self.softplus = softplus
        inner = (num_channels if bank == "separate" else 1, width)
        bound = width**-0.5  # as nn.Linear(1, width) and nn.Linear(width, 1)
        self.weight_in = nn.Parameter(torch.empty(inner).uniform_(-1, 1))
        self.bias_in = nn.Parameter(torch.empty(inner).uniform_(-1, 1))
        self.weight_out = nn.Parameter(torch.empty(num_channels, width).uniform_(-bound, bound))
        self.bias_out = nn.Parameter(torch.empty(num_channels).uniform_(-bound, bound))

    def forward(self, u: Tensor, times: float = 1.0) -> Tensor:
        """ψ(u) · times, a factor that costs nothing in front of the last ReLU."""
        inside = 1.0 if self.softplus else times
        weight_out = self.weight_out.T * inside
        if self.weight_in.shape[0] > 1:
            # hidden unit (l, n) feeds channel l alone
            own = torch.eye(self.num_channels, dtype=weight_out.dtype, device=weight_out.device)
            weight_out = (weight_out.T[..., None] * own[:, None]).flatten(0, 1)
        inner = (self.weight_in.flatten(), self.bias_in.flatten())
        psi = scalar_mlp(u, *inner, weight_out, self.bias_out * inside, relu=self.nonneg and not self.softplus)
        return F.softplus(psi) * times if self.softplus else psi


class LunaMap(FeatureMap):
    """channels: a module u (...) -> (..., num_channels) with that attribute, such as a `ChannelBank`."""

    def __init__(
        self, key_dim: int, num_projections: int, channels: nn.Module, *, envelope: bool = False, ch_rms: bool = False
    ) -> None:
        num_channels: int = channels.num_channels  # type: ignore[assignment]
        super().__init__(key_dim, num_projections * num_channels)
        self.weight = nn.Parameter(torch.randn(num_projections, key_dim) * key_dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_projections))
        self.channels = channels
        self.ch_rms = ch_rms
        self.envelope = (
            nn.ParameterDict({"u": torch.zeros(key_dim), "c": torch.zeros(()), "a": torch.zeros(())}) if envelope else None
        )

    @without_autocast
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        times = 1 / math.sqrt(self.weight.shape[0])
        if isinstance(self.channels, ChannelBank) and not self.ch_rms:
            features: Tensor = self.channels(self._projected(x), times).flatten(-2)
        else:
            features = self.of_queries(x, lengths) * times
        return features if self.envelope is None else features * self._envelope(x)

    @without_autocast
    def of_queries(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """ψ alone: h(x)/√m is a factor of the query."""
        psi_BTHML: Tensor = self.channels(self._projected(x))
        if self.ch_rms:
            psi_BTHML = psi_BTHML * self._rms_scale(psi_BTHML, lengths)
        return psi_BTHML.flatten(-2)

    def _projected(self, x: Tensor) -> Tensor:
        # the scale goes to the weights, of which there are fewer
        return linear(*in_float32(x, self.weight * self.key_dim**-0.25, self.bias))

    def dead_fraction(self, x: Tensor | None = None, reach: float = 4.0) -> float:
        """How much of the map is silent, for a training log: the share of features that are zero for every token of x.

        Without x (B,T,H,key_dim), the share of channels that are zero wherever |w·x + b| <= reach.
        """
        with torch.no_grad():
            if x is None:
                values = self.channels(torch.linspace(-reach, reach, 1025, dtype=torch.float32, device=self.weight.device))
            else:
                values = self(x).flatten(0, -2)
        return float((values == 0).all(0).double().mean())

    def _envelope(self, x: Tensor) -> Tensor:
        assert self.envelope is not None
        x, u, c, a = in_float32(scaled(x), self.envelope["u"], self.envelope["c"], self.envelope["a"])
        exponent = x @ u + c - a * x.square().sum(-1) / 2
        return exponent.clamp(-ENVELOPE_LIMIT, ENVELOPE_LIMIT).exp()[..., None]

    def _rms_scale(self, psi_BTHML: Tensor, lengths: Tensor | None) -> Tensor:
        """min(1, target/rms) per channel, over all real tokens of a sequence."""
        B, T, H, M, _ = psi_BTHML.shape
        tokens_B = psi_BTHML.new_full((B,), T, dtype=torch.long) if lengths is None else lengths.clamp(min=1)
        squares_BL = without_padding(psi_BTHML, lengths).square().sum((1, 2, 3))
        rms_BL = (squares_BL / (tokens_B[:, None] * H * M) + RMS_EPS**2).sqrt()
        return (RMS_TARGET / (rms_BL + RMS_EPS)).clamp(max=1)[:, None, None, None]


class Luna(FeatureAttention):
    """num_features: m·L. num_channels: L, the learnt functions ψ. By default 16 x 8 for keys of up to 32 channels, else
    max(32, key channels / 2) x 4.

    bank: "separate" networks, one per channel, or one "shared". channel_width: hidden units of a network.
    nonneg: ends ψ in a ReLU; without it a sum of weights may vanish, so norm must not be "sum". softplus: instead of the
    ReLU.
    envelope: the learnt factor h(x) of a token. ch_rms: caps a channel's rms over the sequence at 0.1; causal=False only.
    `mixer.feature_map.dead_fraction()` says how many of the channels are zero throughout.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_features: int | None = None,
        num_channels: int | None = None,
        bank: str = "separate",
        channel_width: int = 64,
        nonneg: bool = True,
        softplus: bool = False,
        envelope: bool = False,
        ch_rms: bool = False,
        norm: str = "sum",
        **options: Any,
    ) -> None:
        if not nonneg and norm == "sum":
            raise ValueError("nonneg=False lets the sum of the weights vanish: norm must be 'output' or 'none', not 'sum'")

        def build(key_dim: int) -> LunaMap:
            m, L = (16, 8) if key_dim <= 32 else (max(32, -(-key_dim // 2)), 4)
            L = L if num_channels is None else num_channels
            at_least_one("num_channels", L)
            features = m * L if num_features is None else num_features
            if features % L:
                raise ValueError(f"num_features must be a multiple of num_channels, got {features} and {L}")
            channels = ChannelBank(L, bank=bank, width=channel_width, nonneg=nonneg, softplus=softplus)
            return LunaMap(key_dim, features // L, channels, envelope=envelope, ch_rms=ch_rms)

        super().__init__(d_model, num_heads, build, norm=norm, **options)
        if ch_rms and self.causal:
            raise ValueError("ch_rms=True needs causal=False: its statistics over a sequence let a token see later ones")


register(
    "luna",
    Luna,
    "LUNA: linear attention over learnt features, small networks of learnt projections",
    "Shahbazi et al.: LUNA: Linear Universal Neural Attention with Generalization Guarantees, arXiv 2512.08061, 2025",
    rotary="rope",
)
