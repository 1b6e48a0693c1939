"""Any mixer and a sequence -> its system; the state space models and gated recurrences among them are here.

Their Λ lies between 0 and 1 by construction:

mamba2, ssd    Λ_t = e^{-Δ_t a} per head                B_t = Δ_t b_t      C_t = c_t    D = skip
mamba, s6      Λ_t = e^{-Δ_t a} per channel and state   B_t = Δ_t b_t      C_t = c_t    D = skip
qlstm          Λ_t = σ(W_f u_t) per channel             B_t = σ(W_i u_t)   C_t = σ(W_o u_t)
rglru          Λ_t = exp(-c r_t softplus(A))            B_t = √(1-Λ_t²) σ(W_i u_t)      C = 1
metala, hgrn2  Λ_t = diag(α_t)                          B_t = 1 - α_t      C_t = q_t/√d
"""

# T time, H heads, N states, V value channels, C channels of a recurrence

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.common.arguments import at_least_one
from maclaurin.lab.experiments.draws import relative_distance, seeded
from maclaurin.lab.experiments.dynamics import separable
from maclaurin.lab.experiments.dynamics.system import System, UnknownSystemError
from maclaurin.mixers import build_mixer
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.base import Mixer, advanced
from maclaurin.mixers.delta import Delta
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.gated import GatedSoftmax
from maclaurin.mixers.gla import GLA
from maclaurin.mixers.hgrn2 import HGRN2
from maclaurin.mixers.inline import Inline
from maclaurin.mixers.mamba2 import Mamba2
from maclaurin.mixers.metala import MetaLA
from maclaurin.mixers.mlstm import MLSTM
from maclaurin.mixers.normalized import Normalized
from maclaurin.mixers.recurrent import QLSTM, RGLRU
from maclaurin.mixers.s6 import S6, Mamba
from maclaurin.ops import checks

ORDER = 8  # an even one: then the series of exp is positive everywhere, and so is the sum that divides it


def mamba2(mixer: Mamba2, x: Tensor, order: int) -> System:
    projected, gates, _ = mixer.project(x)
    c_THN, b_THN, u_THV, dt_TH = (part[0] for part in projected)
    dt_TH1 = dt_TH[..., None]
    Lambda_TH1 = torch.exp(-mixer.A_log.exp()[:, None] * dt_TH1)
    skip_THV = mixer.D.view(mixer.ssm_heads, -1).expand_as(u_THV)

    def readout(y_THV: Tensor) -> Tensor:
        return mixer.finish(y_THV[None], gates, x.dtype)

    return System(Lambda_TH1.expand_as(b_THN), dt_TH1 * b_THN, c_THN, u_THV, readout, skip_THV)


def s6(mixer: S6, x: Tensor, order: int) -> System:
    """Mamba's, too, which has a gate beside it."""
    u, gate = mixer.project(x)[:2] if isinstance(mixer, Mamba) else (x, 1.0)
    r, b, c = mixer.x_proj(u).split([mixer.dt_rank, mixer.d_state, mixer.d_state], dim=-1)
    dt_TC1 = mixer.time_step(r)[0, ..., None]
    u_TC1 = u[0, ..., None]
    return System(
        torch.exp(-dt_TC1 * mixer.A_log.exp()),
        dt_TC1 * b[0, :, None],
        c[0, :, None].expand(-1, u.shape[2], -1),
        u_TC1,
        lambda y_TC1: mixer.out_proj(y_TC1.flatten(1)[None] * gate),
        mixer.D[:, None].expand_as(u_TC1),
    )


def qlstm(mixer: QLSTM, x: Tensor, order: int) -> System:
    gate, u = mixer.in_proj(x).chunk(2, dim=-1)
    u, _ = mixer.convolved(u)
    f, i, o = mixer.gate_proj(u).chunk(3, dim=-1)
    Lambda_TC1, B_TC1, C_TC1 = (part[0, ..., None] for part in (mixer.log_decay(f).exp(), i.sigmoid(), o.sigmoid()))
    inputs_TC1 = u[0, ..., None]
    return System(Lambda_TC1, B_TC1, C_TC1, inputs_TC1, lambda y: mixer.out_proj(F.gelu(gate) * y.flatten(1)[None]))


def rglru(mixer: RGLRU, x: Tensor, order: int) -> System:
    *gate, u = mixer.in_proj(x).split(mixer.state_shape[0], dim=-1)
    u, _ = mixer.convolved(u)
    log_decay, input_gate = mixer.gates(u)
    scale = mixer.input_scale(log_decay, None if mixer.scale_first else advanced(None, x, None)[0])
    Lambda_TC1, B_TC1 = (part[0, ..., None] for part in (log_decay.exp(), scale * input_gate))
    factor = F.gelu(gate[0], approximate="tanh") if gate else 1.0
    C_TC1, inputs_TC1 = torch.ones_like(B_TC1), u[0, ..., None]
    return System(Lambda_TC1, B_TC1, C_TC1, inputs_TC1, lambda y: mixer.out_proj(y.flatten(1)[None] * factor))


def metala(mixer: MetaLA, x: Tensor, order: int) -> System:
    """The augmentation is D where it is linear in v; σ(s·v) is not, and is left to the readout."""
    x, _ = mixer.convolved(x)
    q, k, v, log_decay = mixer.project(x)
    weight = mixer.aug_weight

    def readout(y_THV: Tensor) -> Tensor:
        y = y_THV[None]
        if weight is not None and mixer.aug == "code":
            y = y + mixer.augmentation(q, k, v, weight)
        return mixer.finish(y, x)

    linear = weight is not None and mixer.aug != "code"
    skip = mixer.augmentation(q, k, torch.ones_like(v), weight)[0] if weight is not None and linear else None
    return System(log_decay[0].exp(), k[0], q[0] * mixer.key_dim**-0.5, v[0], readout, skip)


def hgrn2(mixer: HGRN2, x: Tensor, order: int) -> System:
    qzv = mixer.in_proj(x)
    q, k, v, log_decay = mixer.split(qzv if mixer.conv is None else mixer.conv.run(qzv)[0])
    C_THK = q[0] * mixer.head_dim**-0.5
    return System(log_decay[0].exp(), k[0], C_THK, v[0], lambda y: mixer.finish(y[None], x))


FAMILIES: dict[type[Mixer], Callable[[Any, Tensor, int], System]] = {
    Attention: separable.attention,
    GatedSoftmax: separable.gated_softmax,
    FeatureAttention: separable.plain,
    Normalized: separable.normalized,
    GLA: separable.plain,
    MLSTM: separable.mlstm,
    Delta: separable.delta,
    Inline: separable.inline,
    Mamba2: mamba2,
    S6: s6,
    QLSTM: qlstm,
    RGLRU: rglru,
    MetaLA: metala,
    HGRN2: hgrn2,
}


@torch.no_grad()
def to_dsf(mixer: Mixer, x: Tensor, *, order: int = ORDER) -> System:
    """The system that `mixer` is on the sequence x (1, T, d_model): `to_dsf(mixer, x).output()` is `mixer(x)[0]`.

    u are the values that enter the recurrence. What stands before them and beside them (convolution, queries, keys, gates)
    is in the matrices, token by token; what comes behind y is the readout. order: where the series of softmax is cut off.
    """
    checks.tensor("x", x, f"1, time, {mixer.d_model}")
    if x.shape[0] != 1 or x.shape[1] == 0 or x.shape[2] != mixer.d_model:
        raise ValueError(f"x must be one sequence of shape (1, time >= 1, {mixer.d_model}), got {checks.shape(x)}")
    at_least_one("order", order)
    if not mixer.causal:
        raise ValueError("mixer must be causal: one that sees whole sequences is no recurrence from the past to the future")
    for family, convert in FAMILIES.items():
        if isinstance(mixer, family):
            return convert(mixer, x, order)
    raise UnknownSystemError(f"{type(mixer).__name__} is of no family whose system is known")


def drawn(name: str, d_model: int, num_heads: int, seed: int, **options: Any) -> Mixer:
    """A mixer of the registry in float64, at its initialisation but for parameters that are zero throughout.

    Those are drawn from N(0, 1): a gate or an augmentation that starts as nothing would be left untested.
    """
    with seeded(seed):
        mixer = build_mixer(name, d_model, num_heads, **options).double()
        for parameter in mixer.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter)
    return mixer


@torch.no_grad()
def form_error(system: System, mixer: Mixer, x: Tensor) -> float:
    """The largest difference between what the system and the mixer give, over the mixer's largest output."""
    return relative_distance(system.output(), mixer(x, return_state=False)[0])
