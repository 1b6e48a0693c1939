"""Mamba-2, the published layer, and the one-headed layer that the thesis (arXiv 2602.17363) calls Mamba-2.

    z, x, B, C, dt = u·W_in;   x, B, C = silu(conv(x, B, C));   dt = softplus(dt + bias)
    S_t = exp(−exp(A_log)·dt) S_{t-1} + dt·x_t B_tᵀ;   y_t = S_t C_t + D⊙x_t;   out = W_out · RMSNorm(y ⊙ silu(z))

that is first-order attention with q = C, k = B, v = dt·x, unscaled and unnormalised. Parameters carry the names of the
authors' code and of `transformers`, so their weights load as they are.

The thesis configured `d_ssm` = head size: one SSM head, and a gated MLP path for all other channels. Its Algorithm 3
instead has H heads with keys and queries of their own: `expand=1, d_state=head_dim, n_groups=num_heads, conv_width=2`.

`ssd=True`, registered as `ssd`, is the state space core alone, as DSF compares it to S6 and attention:

    B, C, dt = u·W_in;   S_t = exp(−exp(A_log)·dt) S_{t-1} + dt·u_t B_tᵀ;   out = W_out·(S_t C_t + D⊙u_t)

The input is its own value, and nothing convolves, activates, gates or normalises. DSF's formula has one decay per head, as
here; what its code calls SSD is S6 with one dt and one A for all channels, but a bias per channel inside the softplus, so
that its decays differ between channels after all. It also starts with A = 1 and, by accident, with all biases zero.

Dao, Gu: Transformers are SSMs, arXiv 2405.21060. Sieber et al.: DSF, arXiv 2405.15731.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.base import (
    AT_ONCE,
    Call,
    Mixer,
    MixerState,
    RMSNorm,
    ShortConv,
    Zeros,
    initial_dt_bias,
    initialise,
    shared_out,
)
from maclaurin.mixers.mechanisms import Linear
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import repeat_heads, wide
from maclaurin.ops.products import of_layer
from maclaurin.ops.states import ConvState, LinearState
from maclaurin.ops.transitions import decay_transition


class GroupNorm(RMSNorm):
    """An RMS norm over the channels of each group, with a weight per channel."""

    def __init__(self, dim: int, groups: int, eps: float) -> None:
        super().__init__(dim, eps)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return super().forward(x)
        x_groups = wide(x).unflatten(-1, (self.groups, -1))
        normalised = F.rms_norm(x_groups, x_groups.shape[-1:], eps=self.eps).flatten(-2)
        return (normalised * self.weight.to(normalised.dtype)).to(x.dtype)


def _time_steps(limit: Sequence[float] | None) -> tuple[float, float] | None:
    if limit is None:
        return None
    low, high = limit if len(limit) == 2 else (1.0, 0.0)
    if not 0 <= low <= high:
        raise ValueError(f"dt_limit must be the smallest and the largest time step, neither below 0, got {limit!r:.60}")
    return low, high


class Mamba2(Mixer):
    """Options:

    expand: inner width over d_model, 2 unless given; head_dim: channels of a head, in its place. d_state: key channels.
    n_groups: how many sets of keys and queries the heads share.
    conv_width, conv_bias: the short convolution over x, B, C, of 4 taps unless given.
    skip_per_channel: D has an entry per channel instead of per head.
    ssd: the core alone, without convolution, activation, gate and norm, on the input itself (so expand is 1).
    single_head: only one head of inner width / num_heads goes through the recurrence, the rest through a gated MLP path.
    norm_eps: of the gated norm; norm_per_group: it is over the channels of each group, as in the authors' code, or over all
    channels, as in transformers before 5.23. norm_before_gate: RMSNorm(y) ⊙ silu(z) instead of RMSNorm(y ⊙ silu(z));
    rmsnorm=False: y ⊙ silu(z). dt_limit: the smallest and the largest time step. init: "torch" (PyTorch's defaults) or
    "llama" (N(0, 0.02)).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        expand: int | None = None,
        head_dim: int | None = None,
        d_state: int = 128,
        n_groups: int = 1,
        conv_width: int | None = None,
        conv_bias: bool = True,
        skip_per_channel: bool = False,
        ssd: bool = False,
        single_head: bool = False,
        norm_eps: float = 1e-5,
        norm_per_group: bool = True,
        norm_before_gate: bool = False,
        rmsnorm: bool = True,
        dt_limit: Sequence[float] | None = None,
        init: str = "torch",
    ) -> None:
        super().__init__(d_model, num_heads)
        if ssd and (expand is not None or head_dim is not None or conv_width is not None or single_head):
            raise ValueError("ssd=True is the core alone: it takes no expand, head_dim, conv_width and single_head")
        if norm_before_gate and (ssd or not rmsnorm):
            raise ValueError("norm_before_gate=True needs a norm, which ssd=True and rmsnorm=False leave out")
        expand = (1 if ssd else 2) if expand is None else expand
        conv_width = 4 if conv_width is None else conv_width
        at_least_one("expand", expand)
        at_least_one("d_state", d_state)
        at_least_one("conv_width", conv_width)
        if head_dim is not None:
            at_least_one("head_dim", head_dim)
        inner = expand * d_model if head_dim is None else head_dim * num_heads
        if inner % num_heads:
            raise ValueError(f"expand·d_model must be a multiple of num_heads, got {inner} and {num_heads}")
        self.head_dim = inner // num_heads
        self.ssm_heads = 1 if single_head else num_heads
        if n_groups < 1 or self.ssm_heads % n_groups:
            raise ValueError(f"n_groups must divide the {self.ssm_heads} heads of the recurrence, got {n_groups}")
        self.d_state, self.n_groups = d_state, n_groups
        self.ssm_dim = self.ssm_heads * self.head_dim
        self.mlp_dim = inner - self.ssm_dim
        self.xbc_sizes = [self.ssm_dim, n_groups * d_state, n_groups * d_state]

        sizes = [self.mlp_dim, self.mlp_dim, self.ssm_dim, sum(self.xbc_sizes), self.ssm_heads]
        self.in_sizes = [*self.xbc_sizes[1:], self.ssm_heads] if ssd else sizes
        self.in_proj = nn.Linear(d_model, sum(self.in_sizes), bias=False)
        self.conv1d = None if ssd else ShortConv(sum(self.xbc_sizes), conv_width, conv_bias)
        self.dt_bias = nn.Parameter(initial_dt_bias(self.ssm_heads))
        self.A_log = nn.Parameter(torch.empty(self.ssm_heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.ssm_dim if skip_per_channel else self.ssm_heads))
        self.norm_before_gate = norm_before_gate
        self.dt_limit = _time_steps(dt_limit)
        groups = n_groups if norm_per_group else 1
        self.norm = None if ssd or not rmsnorm else GroupNorm(self.ssm_dim, groups, norm_eps)
        self.out_proj = nn.Linear(inner, d_model, bias=False)
        initialise(self, init)

    @property
    def folds(self) -> bool:
        return True

    @property
    def packs(self) -> bool:
        return True

    @property
    def whole_because(self) -> str | None:
        if self.conv1d is None:
            return "the values of ssd=True are the input itself"
        return "it has one head" if self.ssm_heads == 1 else None

    @property
    def fused(self) -> dict[str, list[int]]:
        *gates, _, heads = self.in_sizes
        return {"in_proj": [*gates, *self.xbc_sizes, heads], "conv1d": self.xbc_sizes}

    def options_of_part(self, parts: int) -> dict[str, Any]:
        groups = shared_out("n_groups", self.n_groups, parts)
        return {"expand": None, "head_dim": self.head_dim, "n_groups": groups}

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        (q, k, v, dt), gates, conv = self.project(x, None if state is None else state.conv, call)
        log_decay = -self.A_log.to(dt.dtype).exp() * dt
        if call.transitions is not None:
            call.transitions.append(decay_transition(log_decay))
        mechanism, before = Linear(scale=1.0, normalize=False), None if state is None else state.attention
        y, after = mechanism(wide(q), k, (v * dt[..., None]).to(v.dtype), log_decay, before, call)
        y = self.finish(torch.addcmul(y, v, self.D.view(self.ssm_heads, -1).to(y.dtype)), gates, x.dtype)
        return y, None if after is None else MixerState(after, conv, kind=self.kind)

    def project(
        self, x: Tensor, conv: ConvState | None = None, call: Call = AT_ONCE
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Sequence[Tensor], ConvState | None]:
        """q, k, v and dt of every head; the gates that `finish` takes; the state of the convolution."""
        parts = of_layer(self.in_proj, x).split(self.in_sizes, dim=-1)
        gates: Sequence[Tensor] = ()
        if self.conv1d is None:
            values, (keys, queries, dt) = x, parts
        else:
            *gates, xbc, dt = parts
            xbc, conv = self.conv1d.run(xbc, conv, call, activation="silu")
            values, keys, queries = xbc.split(self.xbc_sizes, dim=-1)
        v = values.unflatten(-1, (self.ssm_heads, self.head_dim))
        k, q = (repeat_heads(part.unflatten(-1, (self.n_groups, self.d_state)), self.ssm_heads) for part in (keys, queries))
        dt = F.softplus(dt.to(torch.promote_types(dt.dtype, torch.float32)) + self.dt_bias)
        if self.dt_limit is not None:
            dt = dt.clamp(*self.dt_limit)
        return (q, k, v, dt), gates, conv

    def finish(self, y: Tensor, gates: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The output of the recurrence (B,T,H,V) normalised, gated and projected."""
        y = y.flatten(2)
        if gates:
            mlp_gate, mlp, gate = gates
            y = self._normalised(y, F.silu(gate))
            if self.mlp_dim:
                y = torch.cat([F.silu(mlp_gate) * mlp, y], dim=-1)
        projected: Tensor = of_layer(self.out_proj, y.to(dtype))
        return projected

    def _normalised(self, y: Tensor, gate: Tensor) -> Tensor:
        if self.norm is None:
            return y * gate
        normalised: Tensor = self.norm(y) * gate if self.norm_before_gate else self.norm(y * gate)
        return normalised

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.ssm_heads, self.d_state, self.head_dim, dtype=zeros.wide)
        conv = None if self.conv1d is None else self.conv1d.state_of(zeros)
        return MixerState(LinearState(recurrent), conv, kind=self.kind)


CITATION = "Dao, Gu: Transformers are SSMs, 2024"

register("mamba2", Mamba2, "Mamba-2: first order behind a decay, convolution, gated norm", CITATION)
register(
    "ssd",
    Mamba2,
    "SSD: Mamba-2's state space core alone, without convolution, gate and norm",
    CITATION + "; as compared in Sieber et al.: DSF, arXiv 2405.15731, 2024",
    ssd=True,
)
register(
    "mamba2-single-head",
    Mamba2,
    "Mamba-2 as the thesis ran it: one head of 64 channels, the other channels a gated MLP",
    CITATION + "; as configured in 2Mamba2Furious, 2026",
    expand=1,
    conv_width=2,
    conv_bias=False,
    skip_per_channel=True,
    single_head=True,
)
