"""Mixers with queries, keys and values as systems: N is the number of features of a key.

    linear, 2mamba, taylor, …   Λ_t = e^{a_t} η_{t-1}/η_t      B_t = φ(k_t)/η_t     C_t = φ(q_t)     η_t = Σ_s w_ts, or 1
    softmax, 2mamba-e, fox      the same with the features of the series up to an order that is cut off
    sliding-window              Λ shifts the last values by one place, C_t = the weights of the window
    normalized                  η_t = η(x_t), a function of the token
    gla                         Λ_t = diag(α_t)                B_t = k_t            C_t = q_t/√d
    mlstm                       Λ_t = σ(f_t)                   B_t = g(i_t) k_t     C_t = q_t/(√d max(|n_t·q_t|, 1))
    delta                       Λ_t = e^{a_t} (I − β_t φ(k_t)φ(k_t)ᵀ)    B_t = β_t φ(k_t)    C_t = φ(q_t)
    inline                      sums of all keys' and of the last values side by side

DSF prints B_t with η_{t-1} in its main text (15b); with η_t, as in its appendix, the product telescopes to 1/η_t.
"""

# T time, H heads, N features, V value channels

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.delta import Delta, unit
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.feature_maps import features
from maclaurin.mixers.gated import GatedSoftmax
from maclaurin.mixers.gla import GLA
from maclaurin.mixers.inline import Inline
from maclaurin.mixers.mlstm import MLSTM
from maclaurin.mixers.normalized import Normalized
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.ops import softmax_attention
from maclaurin.ops.arithmetic import repeat_heads
from maclaurin.ops.features import Kernel, symmetric_power

MOST_STATES = 5_000  # a value channel


def divided(system: System, eta_TH: Tensor, *, as_printed: bool = False) -> System:
    """The same outputs over η_t, with η in the state as DSF has it. as_printed: (15b), which gives others.

    A row with η = 0 reads nothing, as mixers define it, and leaves the units of the state as they were.
    """
    nothing_TH = eta_TH.abs() < torch.finfo(eta_TH.dtype).tiny ** 0.8
    times = torch.arange(eta_TH.shape[0], dtype=torch.long, device="cpu")[:, None]
    last_TH = torch.where(nothing_TH, -1, times).cummax(0).values  # the last token with an η, -1 before the first
    units_TH = torch.where(last_TH < 0, 1.0, eta_TH.gather(0, last_TH.clamp(min=0)))
    before_TH = torch.cat([torch.ones_like(units_TH[:1]), units_TH[:-1]])
    ratio_TH = before_TH / units_TH
    ratio = ratio_TH[..., None] if system.diagonal else ratio_TH[..., None, None]
    return replace(
        system,
        transition=system.transition * ratio,
        write=system.write / (before_TH if as_printed else units_TH)[..., None],
        read=system.read.masked_fill(nothing_TH[..., None], 0),
    )


def sums(system: System) -> Tensor:
    """η_t (T,H), the sums of the weights."""
    ones_TH1 = torch.ones_like(system.inputs[..., :1])
    return replace(system, skip=None).run(ones_TH1)[..., 0]


def over_sum(system: System) -> System:
    return divided(system, sums(system))


def first_order(mixer: ProjectedMixer, p: Projections, q_THN: Tensor, k_THN: Tensor) -> System:
    """w_ts = q_t·k_s·exp(a_{s+1} + … + a_t), of values before they are discretised; only `out_proj` is behind it."""
    decay_TH1 = torch.ones_like(q_THN[..., :1])
    if p.log_decay is not None:
        decay_TH1 = _of_heads(p.log_decay, mixer).exp()[..., None]
    values = _of_heads(p.plain_v, mixer)
    return System(decay_TH1.expand_as(k_THN), k_THN, q_THN, values, lambda y_THV: mixer.out_proj(y_THV.flatten(1)[None]))


def discretised(system: System, mixer: ProjectedMixer, p: Projections) -> System:
    """Values times their time step: a factor of B, that the sum of the weights does not have."""
    if mixer.value_discretization == "none":
        return system
    assert p.dt is not None
    return replace(system, write=system.write * _of_heads(p.dt, mixer)[..., None])


def attention(mixer: Attention, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q, k = features(p.q, mixer.feature_map), features(p.k, mixer.feature_map)
    scale = 1.0 if mixer.feature_map == "cosine" else mixer.key_dim**-0.5
    if mixer.window is not None:
        system = _windowed(mixer, p, q, k, scale)
    else:
        kernel = series(mixer.key_dim, order) if mixer.kernel is None else mixer.kernel
        q_THN = kernel.features(scale * q[0])
        if mixer.order_logits is not None:
            counts = torch.tensor(kernel.feature_counts(mixer.key_dim), dtype=torch.long, device="cpu")
            q_THN = q_THN * (2 * torch.sigmoid(mixer.order_logits)).repeat_interleave(counts, dim=1)
        system = first_order(mixer, p, q_THN, kernel.features(_of_heads(k, mixer)))
        if mixer.kernel is None:
            system = replace(divided(system, _positive(sums(system), order)), order=order)
        elif mixer.norm == "sum":
            system = over_sum(system)
    if mixer.position_power is not None:
        count_T1 = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device="cpu")[:, None]
        power_H = torch.sigmoid(mixer.position_power).repeat_interleave(mixer.num_heads // mixer.num_kv_heads)
        system = replace(system, write=system.write / (count_T1**power_H)[..., None])
    gate = 1.0 if mixer.gate_proj is None else F.silu(mixer.gate_proj(x))
    norm = mixer.out_norm or (lambda y: y)
    skip = None if mixer.skip is None else mixer.skip.expand_as(system.inputs)
    system = replace(discretised(system, mixer, p), skip=skip)
    return replace(system, readout=lambda y_THV: mixer.out_proj(norm(y_THV.flatten(1)[None] * gate)))


def gated_softmax(mixer: GatedSoftmax, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q_THK, k_THK = p.q[0] * mixer.key_dim**-0.5, _of_heads(p.k, mixer)
    if mixer.numerator == "relu":
        q_THK, k_THK = q_THK.relu(), k_THK.relu()
    largest = torch.einsum("thk,shk->hts", q_THK, k_THK).tril().max().item()
    if mixer.score_cap is not None and largest > mixer.score_cap:
        raise ValueError(
            f"a score of {largest:.3g} is above score_cap={mixer.score_cap:g}, where a capped score has no power series: "
            "give smaller x or score_cap=None"
        )
    kernel = Kernel.of(1) if mixer.numerator == "relu" else series(mixer.key_dim, order)
    system = first_order(mixer, p, kernel.features(q_THK), kernel.features(k_THK))
    sums_TH = sums(system)
    match mixer.divisor:
        case "sum":
            system = divided(system, _positive(sums_TH, order) if mixer.numerator == "exp" else sums_TH)
        case "floored-sum":
            system = divided(system, sums_TH.clamp(min=1))
        case "count":
            count_T1 = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device="cpu")[:, None]
            system = divided(system, count_T1.expand_as(sums_TH))
        case "cumulative-gate":
            assert mixer.divisor_proj is not None
            system = divided(system, mixer.divisor_proj(x)[0].exp().cumsum(0).clamp(min=1))
    if mixer.in_gate_proj is not None:
        gate_TH = _of_heads(torch.sigmoid(mixer.in_gate_proj(x)), mixer)
        system = replace(system, write=system.write * gate_TH[..., None])
    system = replace(system, readout=lambda y_THV: mixer.finish(y_THV[None], x))
    return replace(discretised(system, mixer, p), order=None if mixer.numerator == "relu" else order)


def feature_attention(mixer: FeatureAttention, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q, k = mixer.features(p.q, p.k)
    system = first_order(mixer, p, q[0], _of_heads(k, mixer))
    if mixer.norm == "sum":
        system = over_sum(system)

    norm = mixer.out_norm or (lambda y: y)
    return replace(discretised(system, mixer, p), readout=lambda y_THV: mixer.out_proj(norm(y_THV.flatten(1)[None])))


def normalized(mixer: Normalized, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q, k = (F.elu(part) + 1 if mixer.feature_map == "elu" else part for part in (p.q, p.k))
    system = first_order(mixer, p, q[0], _of_heads(k, mixer))
    return discretised(divided(system, 1 / mixer.gain(x)[0]), mixer, p)


def gla(mixer: GLA, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    system = first_order(mixer, p, p.q[0] * mixer.key_dim**-0.5, _of_heads(p.k, mixer))
    gate, alpha_THN = F.silu(mixer.gate_proj(x)), _of_heads(mixer.log_decay(x), mixer).exp()
    system = replace(discretised(system, mixer, p), transition=alpha_THN)
    return replace(system, readout=lambda y_THV: mixer.out_proj(mixer.out_norm(y_THV[None]).flatten(2) * gate))


def mlstm(mixer: MLSTM, x: Tensor, order: int) -> System:
    """Not divided by a power of e as the op is: in float64 no gate that is capped leaves the range."""
    p = mixer.project(x)
    gates = mixer.gates.wide(x)
    if mixer.gate_cap is not None:
        gates = mixer.gate_cap * torch.tanh(gates / mixer.gate_cap)
    i_TH, f_TH = (_of_heads(gate, mixer) for gate in gates.chunk(2, dim=-1))
    input_TH = i_TH.exp() if mixer.input_gate == "exp" else i_TH.sigmoid()
    system = first_order(mixer, p, p.q[0] * mixer.key_dim**-0.5, input_TH[..., None] * _of_heads(p.k, mixer))
    system = replace(system, transition=f_TH.sigmoid()[..., None].expand_as(system.write))
    total_TH = sums(system).abs().clamp(min=1)
    if mixer.input_gate == "exp":
        sums_TH = F.logsigmoid(f_TH).cumsum(0)
        m_TH = (sums_TH + (i_TH - sums_TH).cummax(0).values).clamp(min=0)  # the op's units, which ε is in
        total_TH = total_TH + mixer.eps * m_TH.exp()
    else:
        total_TH = total_TH + mixer.eps
    gate = torch.sigmoid(mixer.out_gate(x))
    system = replace(discretised(system, mixer, p), read=system.read / total_TH[..., None])
    return replace(system, readout=lambda y_THV: mixer.out_proj(gate * mixer.normalised(y_THV[None]).flatten(2)))


def delta(mixer: Delta, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q_THN, k_THN = (symmetric_power(unit(_of_heads(part, mixer)), mixer.order) for part in (p.q, p.k))
    system = first_order(mixer, p, q_THN, k_THN)
    beta_TH1 = mixer.largest_beta * torch.sigmoid(_of_heads(mixer.beta_proj(x), mixer))[..., None]
    eye_NN = torch.eye(k_THN.shape[2], dtype=x.dtype, device="cpu")
    transition_THNN = system.transition[..., None] * (eye_NN - (beta_TH1 * k_THN)[..., None] * k_THN[..., None, :])
    gate = 1.0 if mixer.gate_proj is None else F.silu(mixer.gate_proj(x))
    norm = mixer.out_norm or (lambda y: y)
    system = discretised(replace(system, transition=transition_THNN, write=beta_TH1 * k_THN), mixer, p)
    return replace(system, readout=lambda y_THV: mixer.out_proj(norm(y_THV[None]).flatten(2) * gate))


def inline(mixer: Inline, x: Tensor, order: int) -> System:
    """Where there is a local filter, every channel has taps of its own and becomes a head of one channel."""
    p = mixer.project(x)
    scale = mixer.key_dim**-0.5 if mixer.scale is None else mixer.scale
    count_T11 = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device="cpu")[:, None, None]
    q_THK = features(p.q, mixer.feature_map)[0] * scale / count_T11
    k_THK = _of_heads(features(p.k, mixer.feature_map), mixer)
    offset_TH1 = (1 - (q_THK * k_THK.cumsum(0)).sum(-1, keepdim=True)) / count_T11
    q_THN, k_THN = torch.cat([q_THK, offset_TH1], -1), torch.cat([k_THK, torch.ones_like(offset_TH1)], -1)
    system = discretised(first_order(mixer, p, q_THN, k_THN), mixer, p)
    if mixer.local is None:
        return system
    mean_BTD = x.cumsum(1) / count_T11[:, 0]
    taps_TUW = mixer.local(mean_BTD)[0].flatten(1, 2).flip(-1)  # the token itself first
    T, U, W = taps_TUW.shape
    V, N = mixer.head_dim, q_THN.shape[2]
    transition = torch.block_diag(torch.eye(N, dtype=x.dtype, device="cpu"), _shift(W, x.dtype)).expand(T, U, N + W, N + W)
    # the filter sees values as they are written, discretised
    first_TU1 = (system.write / k_THN)[..., -1:].repeat_interleave(V, dim=1)
    newest_TUW = F.pad(first_TU1, (0, W - 1))
    return System(
        transition,
        torch.cat([system.write.repeat_interleave(V, dim=1), newest_TUW], -1),
        torch.cat([system.read.repeat_interleave(V, dim=1), taps_TUW], -1),
        system.inputs.flatten(1)[..., None],
        system.readout,
    )


def series(key_dim: int, order: int) -> Kernel:
    """exp up to an order."""
    states = math.comb(key_dim + order, order)
    if states > MOST_STATES:
        raise ValueError(
            f"the series of exp up to order={order} has {states} terms of {key_dim} key channels, more than {MOST_STATES}: "
            "give a lower order or fewer channels a head"
        )
    return Kernel.of(range(order + 1))


def _positive(sums_TH: Tensor, order: int) -> Tensor:
    """An even order of the series is positive everywhere; an odd one is not, far enough from 0."""
    if bool((sums_TH <= 0).any()):
        raise ValueError(f"order={order} gives weights whose sum is not positive: give an even order")
    return sums_TH


def _windowed(mixer: Attention, p: Projections, q: Tensor, k: Tensor, scale: float) -> System:
    """The last values as the state, and the window's weights to read them."""
    assert mixer.window is not None
    T, H = q.shape[1:3]
    one_hot = torch.eye(T, dtype=q.dtype, device="cpu")[None, :, None].expand(1, T, k.shape[2], T)
    weights, _ = softmax_attention(q, k, one_hot, p.log_decay, window=mixer.window, scale=scale, return_state=False)
    N = min(mixer.window, T)
    back_TN = torch.arange(T, dtype=torch.long, device="cpu")[:, None] - torch.arange(N, dtype=torch.long, device="cpu")
    read_THN = weights[0].gather(2, back_TN.clamp(min=0)[:, None].expand(T, H, N)) * (back_TN >= 0)[:, None]
    newest_THN = F.one_hot(torch.tensor(0, dtype=torch.long, device="cpu"), N).to(q.dtype).expand(T, H, N)
    return replace(first_order(mixer, p, read_THN, newest_THN), transition=_shift(N, q.dtype).expand(T, H, N, N))


def _shift(size: int, dtype: torch.dtype) -> Tensor:
    """Every state moves one place on, and the last is forgotten."""
    return torch.ones(size - 1, dtype=dtype, device="cpu").diag(-1)


def _of_heads(x: Tensor, mixer: ProjectedMixer) -> Tensor:
    """(1,T,G,…) -> (T,H,…)."""
    return repeat_heads(x, mixer.num_heads)[0]
