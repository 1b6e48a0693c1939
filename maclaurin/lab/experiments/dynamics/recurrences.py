"""State space models and gated recurrences as systems: Λ lies between 0 and 1 by construction.

mamba2, ssd    Λ_t = e^{-Δ_t a} a head                  B_t = Δ_t b_t      C_t = c_t    D = skip
s6             Λ_t = e^{-Δ_t a} a channel and state     B_t = Δ_t b_t      C_t = c_t    D = skip
qlstm          Λ_t = σ(W_f u_t) a channel               B_t = σ(W_i u_t)   C_t = σ(W_o u_t)
rglru          Λ_t = exp(-c r_t softplus(A))            B_t = √(1-Λ_t²) σ(W_i u_t)      C = 1
metala         Λ_t = diag(α_t)                          B_t = 1 - α_t      C_t = q_t/√d
"""

# T time, H heads, N states, V value channels, C channels of a recurrence

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.mixers.gla import log_sigmoid_decay
from maclaurin.mixers.mamba2 import Mamba2
from maclaurin.mixers.metala import MetaLA
from maclaurin.mixers.recurrent import QLSTM, RGLRU, complement
from maclaurin.mixers.s6 import S6
from maclaurin.ops.arithmetic import repeat_heads


def mamba2(mixer: Mamba2, x: Tensor, order: int) -> System:
    parts = mixer.in_proj(x).split(mixer.in_sizes, dim=-1)
    if mixer.conv1d is None:
        values, (keys, queries, dt) = x, parts
    else:
        mlp_gate, mlp, gate, xbc, dt = parts
        xbc, _ = mixer.conv1d.run(xbc, None, "auto", None, activation="silu")
        values, keys, queries = xbc.split(mixer.xbc_sizes, dim=-1)
    u_THV = values[0].unflatten(-1, (mixer.ssm_heads, mixer.head_dim))
    b_THN, c_THN = (
        repeat_heads(part.unflatten(-1, (mixer.n_groups, mixer.d_state)), mixer.ssm_heads)[0] for part in (keys, queries)
    )
    dt_TH1 = F.softplus(dt + mixer.dt_bias)[0, ..., None]
    Lambda_TH1 = torch.exp(-mixer.A_log.exp()[:, None] * dt_TH1)

    def readout(y_THV: Tensor) -> Tensor:
        y = y_THV.flatten(1)[None]
        if mixer.norm is not None:
            y = mixer.norm(y * F.silu(gate))
        if mixer.mlp_dim:
            y = torch.cat([F.silu(mlp_gate) * mlp, y], dim=-1)
        finished: Tensor = mixer.out_proj(y)
        return finished

    skip_THV = mixer.D.view(mixer.ssm_heads, -1).expand_as(u_THV)
    return System(Lambda_TH1.expand_as(b_THN), dt_TH1 * b_THN, c_THN, u_THV, readout, skip_THV)


def s6(mixer: S6, x: Tensor, order: int) -> System:
    r, b, c = mixer.x_proj(x).split([mixer.dt_rank, mixer.d_state, mixer.d_state], dim=-1)
    dt_TC1 = mixer.time_step(r)[0, ..., None]
    u_TC1 = x[0, ..., None]
    return System(
        torch.exp(-dt_TC1 * mixer.A_log.exp()),
        dt_TC1 * b[0, :, None],
        c[0, :, None].expand(-1, mixer.d_model, -1),
        u_TC1,
        lambda y_TC1: mixer.out_proj(y_TC1.flatten(1)[None]),
        mixer.D[:, None].expand_as(u_TC1),
    )


def qlstm(mixer: QLSTM, x: Tensor, order: int) -> System:
    gate, u = mixer.in_proj(x).chunk(2, dim=-1)
    if mixer.conv is not None:
        u, _ = mixer.conv.run(u, None, "auto", None)
    f, i, o = mixer.gate_proj(u).chunk(3, dim=-1)
    Lambda_TC1, B_TC1, C_TC1 = (part[0, ..., None] for part in (mixer.log_decay(f).exp(), i.sigmoid(), o.sigmoid()))

    def readout(y_TC1: Tensor) -> Tensor:
        finished: Tensor = mixer.out_proj(F.gelu(gate) * y_TC1.flatten(1)[None])
        return finished

    return System(Lambda_TC1, B_TC1, C_TC1, u[0, ..., None], readout)


def rglru(mixer: RGLRU, x: Tensor, order: int) -> System:
    *gate, u = mixer.in_proj(x).split(mixer.memory_shape[0], dim=-1)
    if mixer.conv is not None:
        u, _ = mixer.conv.run(u, None, "auto", None)
    log_decay, input_gate = mixer.gates(u)
    Lambda_TC1, B_TC1 = (part[0, ..., None] for part in (log_decay.exp(), complement(log_decay) * input_gate))

    def readout(y_TC1: Tensor) -> Tensor:
        y = y_TC1.flatten(1)[None]
        finished: Tensor = mixer.out_proj(y * F.gelu(gate[0], approximate="tanh") if gate else y)
        return finished

    return System(Lambda_TC1, B_TC1, torch.ones_like(B_TC1), u[0, ..., None], readout)


def metala(mixer: MetaLA, x: Tensor, order: int) -> System:
    """The augmentation is D where it is linear in v; σ(s·v) is not, and is left to the readout."""
    if mixer.conv is not None:
        x, _ = mixer.conv.run(x, None, "auto", None, activation=mixer.activation)
    elif mixer.activation == "silu":
        x = F.silu(x)
    parts = mixer.in_proj(x).split(mixer.in_sizes, dim=-1)
    q, logits, v, *own_key = (part.unflatten(-1, (mixer.num_heads, -1)) for part in parts)
    log_decay = log_sigmoid_decay(logits, mixer.tau)
    k = own_key[0] if own_key else -torch.expm1(log_decay)
    weight = mixer.aug_weight

    def readout(y_THV: Tensor) -> Tensor:
        y = y_THV[None]
        if weight is not None and mixer.aug == "code":
            y = y + mixer.augmentation(q, k, v, weight)
        y = F.layer_norm(y, (mixer.head_dim,), eps=mixer.norm_eps).flatten(2)
        finished: Tensor = mixer.out_proj(y * F.silu(mixer.gate_proj(x)))
        return finished

    linear = weight is not None and mixer.aug != "code"
    skip = mixer.augmentation(q, k, torch.ones_like(v), weight)[0] if weight is not None and linear else None
    return System(log_decay[0].exp(), k[0], q[0] * mixer.key_dim**-0.5, v[0], readout, skip)
