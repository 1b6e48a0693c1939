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

from maclaurin.lab.experiments.dynamics.system import System, UnknownSystemError
from maclaurin.mixers import inline as inline_mixer
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.delta import Delta, unit
from maclaurin.mixers.gated import GatedSoftmax
from maclaurin.mixers.mechanisms import Inline, Linear, OfScores, Power, Softmax
from maclaurin.mixers.mlstm import MLSTM
from maclaurin.mixers.normalized import Normalized
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.ops.arithmetic import default_scale, repeat_heads
from maclaurin.ops.features import Kernel, symmetric_power
from maclaurin.ops.squares_by_channel import of_pairs

MOST_STATES = 5_000  # per value channel


def divided(system: System, eta_TH: Tensor, *, as_printed: bool = False) -> System:
    """The same outputs over η_t, with η in the state as DSF has it. as_printed: (15b), which gives others.

    A token with η = 0 reads nothing, as mixers define it, and leaves the units of the state as they were.
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


def first_order(mixer: ProjectedMixer, x: Tensor, p: Projections, q_THN: Tensor, k_THN: Tensor) -> System:
    """w_ts = q_t·k_s·exp(a_{s+1} + … + a_t), of values before they are discretised."""
    decay_THN = torch.ones_like(k_THN)
    if p.log_decay is not None:
        decay = _of_heads(p.log_decay, mixer).exp()
        decay_THN = (decay if decay.dim() == 3 else decay[..., None]).expand_as(k_THN)
    values = _of_heads(p.plain_v, mixer)
    return System(decay_THN, k_THN, q_THN, values, lambda y_THV: mixer.finish(y_THV[None], x))


def discretised(system: System, mixer: ProjectedMixer, p: Projections) -> System:
    if mixer.value_discretization == "none":
        return system
    assert p.dt is not None
    return replace(system, write=system.write * _of_heads(p.dt, mixer)[..., None])


def of_mechanism(mixer: ProjectedMixer, x: Tensor, p: Projections, order: int) -> System:
    """What the mixer's mechanism does to its values before they are discretised. order: where a series is cut off."""
    mechanism = mixer.mechanism
    if not isinstance(mechanism, OfScores):
        raise UnknownSystemError(f"{type(mixer).__name__} with these options is of no family whose system is known")
    if isinstance(mechanism, Softmax) and mechanism.window is not None:
        return _windowed(mechanism, mechanism.window, mixer, x, p)
    q, k = mechanism.mapped(p.q, p.k)
    q_THN, k_THN = default_scale(mechanism.scale, q) * q[0], _of_heads(k, mixer)
    cut, divisor = None, "sum" if isinstance(mechanism, Linear) and mechanism.normalize else "none"
    match mechanism:
        case Inline():
            q_THN, k_THN = _centred(q_THN, k_THN)
        case Power():
            kernel = Kernel.of(mechanism.order)
            counts = torch.tensor(kernel.feature_counts(k_THN.shape[2]), dtype=torch.long, device="cpu")
            q_THN, k_THN = kernel.features(q_THN), kernel.features(k_THN)
            if p.log_decay is not None and p.log_decay.dim() == 4:
                p = replace(p, log_decay=of_pairs(p.log_decay))
            if mechanism.order_weights is not None:
                q_THN = q_THN * mechanism.order_weights.repeat_interleave(counts, dim=1)
        case Softmax():
            divisor = mechanism.divisor
            if mechanism.numerator == "exp":  # relu of features that are not negative is first order
                kernel, cut = _series(q_THN, k_THN, mechanism.score_cap, order), order
                q_THN, k_THN = kernel.features(q_THN), kernel.features(k_THN)
    return _over(divisor, replace(first_order(mixer, x, p, q_THN, k_THN), order=cut))


def _series(q_THK: Tensor, k_THK: Tensor, cap: float | None, order: int) -> Kernel:
    """exp up to an order."""
    largest, channels = torch.einsum("thk,shk->hts", q_THK, k_THK).tril().max().item(), k_THK.shape[2]
    if cap is not None and largest > cap:
        raise ValueError(
            f"a score of {largest:.3g} is above score_cap={cap:g}, where a capped score has no power series: "
            "give smaller x or score_cap=None"
        )
    if (states := math.comb(channels + order, order)) > MOST_STATES:
        raise ValueError(
            f"the series of exp up to order={order} has {states} terms of {channels} key channels, more than {MOST_STATES}: "
            "give a lower order or fewer channels per head"
        )
    return Kernel.of(range(order + 1))


def _over(divisor: str, system: System) -> System:
    if divisor == "count":
        return divided(system, _counts(system.write)[:, None].expand(system.write.shape[:2]))
    if divisor not in ("sum", "floored-sum"):
        return system
    sums_TH = sums(system)
    # an even order of the series is positive everywhere; an odd one is not, far enough from 0
    if divisor == "sum" and system.order is not None and bool((sums_TH <= 0).any()):
        raise ValueError(f"order={system.order} gives weights whose sum is not positive: give an even order")
    return divided(system, sums_TH if divisor == "sum" else sums_TH.clamp(min=1))


def _centred(q_THK: Tensor, k_THK: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys with one more channel, which holds 1 for every key (`ops/inline.py`)."""
    count_T11 = _counts(q_THK)[:, None, None]
    q_THK = q_THK / count_T11
    offset_TH1 = (1 - (q_THK * k_THK.cumsum(0)).sum(-1, keepdim=True)) / count_T11
    return torch.cat([q_THK, offset_TH1], -1), torch.cat([k_THK, torch.ones_like(offset_TH1)], -1)


def _counts(x: Tensor) -> Tensor:
    """How many tokens there have been (T,)."""
    return torch.arange(1, x.shape[0] + 1, dtype=x.dtype, device="cpu")


def plain(mixer: ProjectedMixer, x: Tensor, order: int) -> System:
    """Values times their time step, where there is one: a factor of B, that the sum of the weights does not have."""
    p = mixer.project(x)
    return discretised(of_mechanism(mixer, x, p, order), mixer, p)


def attention(mixer: Attention, x: Tensor, order: int) -> System:
    system = plain(mixer, x, order)
    if mixer.position_power is not None:
        power_H = torch.sigmoid(mixer.position_power).repeat_interleave(mixer.num_heads // mixer.num_kv_heads)
        system = replace(system, write=system.write / (_counts(x[0])[:, None] ** power_H)[..., None])
    return replace(system, skip=None if mixer.skip is None else mixer.skip.expand_as(system.inputs))


def gated_softmax(mixer: GatedSoftmax, x: Tensor, order: int) -> System:
    system = plain(mixer, x, order)
    if mixer.divisor_proj is not None:
        system = divided(system, mixer.divisor_proj(x)[0].exp().cumsum(0).clamp(min=1))
    if mixer.in_gate_proj is not None:
        gate_TH = _of_heads(torch.sigmoid(mixer.in_gate_proj(x)), mixer)
        system = replace(system, write=system.write * gate_TH[..., None])
    return system


def normalized(mixer: Normalized, x: Tensor, order: int) -> System:
    return divided(plain(mixer, x, order), 1 / mixer.gain(x)[0])


def mlstm(mixer: MLSTM, x: Tensor, order: int) -> System:
    """Not divided by a power of e as the op is: in float64 no gate that is capped leaves the range."""
    p = mixer.project(x)
    gates = mixer.gates.wide(x)
    if mixer.gate_cap is not None:
        gates = mixer.gate_cap * torch.tanh(gates / mixer.gate_cap)
    i_TH, f_TH = (_of_heads(gate, mixer) for gate in gates.chunk(2, dim=-1))
    input_TH = i_TH.exp() if mixer.input_gate == "exp" else i_TH.sigmoid()
    system = first_order(mixer, x, p, p.q[0] * mixer.key_dim**-0.5, input_TH[..., None] * _of_heads(p.k, mixer))
    system = replace(system, transition=f_TH.sigmoid()[..., None].expand_as(system.write))
    total_TH = sums(system).abs().clamp(min=1)
    if mixer.input_gate == "exp":
        sums_TH = F.logsigmoid(f_TH).cumsum(0)
        m_TH = (sums_TH + (i_TH - sums_TH).cummax(0).values).clamp(min=0)  # the op's units, which ε is in
        total_TH = total_TH + mixer.eps * m_TH.exp()
    else:
        total_TH = total_TH + mixer.eps
    return replace(discretised(system, mixer, p), read=system.read / total_TH[..., None])


def delta(mixer: Delta, x: Tensor, order: int) -> System:
    p = mixer.project(x)
    q_THN, k_THN = (symmetric_power(unit(_of_heads(part, mixer)), mixer.order) for part in (p.q, p.k))
    system = first_order(mixer, x, p, q_THN, k_THN)
    beta_TH1 = mixer.largest_beta * torch.sigmoid(_of_heads(mixer.beta_proj(x), mixer))[..., None]
    eye_NN = torch.eye(k_THN.shape[2], dtype=x.dtype, device="cpu")
    transition_THNN = system.transition[..., None] * (eye_NN - (beta_TH1 * k_THN)[..., None] * k_THN[..., None, :])
    return discretised(replace(system, transition=transition_THNN, write=beta_TH1 * k_THN), mixer, p)


def inline(mixer: inline_mixer.Inline, x: Tensor, order: int) -> System:
    """Where there is a local filter, every channel has taps of its own and becomes a head of one channel."""
    system = plain(mixer, x, order)
    if mixer.local is None:
        return system
    mean_BTD = x.cumsum(1) / _counts(x[0])[:, None]
    taps_TUW = mixer.local(mean_BTD)[0].flatten(1, 2).flip(-1)  # the token itself first
    T, U, W = taps_TUW.shape
    V, N = mixer.head_dim, system.states
    transition = torch.block_diag(torch.eye(N, dtype=x.dtype, device="cpu"), _shift(W, x.dtype)).expand(T, U, N + W, N + W)
    # the filter sees values as they are written, discretised
    first_TU1 = system.write[..., -1:].repeat_interleave(V, dim=1)
    newest_TUW = F.pad(first_TU1, (0, W - 1))
    return System(
        transition,
        torch.cat([system.write.repeat_interleave(V, dim=1), newest_TUW], -1),
        torch.cat([system.read.repeat_interleave(V, dim=1), taps_TUW], -1),
        system.inputs.flatten(1)[..., None],
        lambda y_TU1: system.readout(y_TU1.view(T, -1, V)),
    )


def _windowed(mechanism: Softmax, window: int, mixer: ProjectedMixer, x: Tensor, p: Projections) -> System:
    """The last values as the state, and the window's weights to read them."""
    weights_THT = mechanism.weights(p.q, p.k, p.log_decay)[0].transpose(0, 1)
    T, H = weights_THT.shape[:2]
    N = min(window, T)
    back_TN = torch.arange(T, dtype=torch.long, device="cpu")[:, None] - torch.arange(N, dtype=torch.long, device="cpu")
    read_THN = weights_THT.gather(2, back_TN.clamp(min=0)[:, None].expand(T, H, N)) * (back_TN >= 0)[:, None]
    newest_THN = F.one_hot(torch.tensor(0, dtype=torch.long, device="cpu"), N).to(p.q.dtype).expand(T, H, N)
    return replace(first_order(mixer, x, p, read_THN, newest_THN), transition=_shift(N, p.q.dtype).expand(T, H, N, N))


def _shift(size: int, dtype: torch.dtype) -> Tensor:
    """Every state moves one place on, and the last is forgotten."""
    return torch.ones(size - 1, dtype=dtype, device="cpu").diag(-1)


def _of_heads(x: Tensor, mixer: ProjectedMixer) -> Tensor:
    """(1,T,G,…) -> (T,H,…)."""
    return repeat_heads(x, mixer.num_heads)[0]
