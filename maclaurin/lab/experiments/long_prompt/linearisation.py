"""Is a softmax head linear on the prompts it sees, and from which length on?

For every query the keys and values of its prompt are taken as draws from a law. If that law is Gaussian, softmax tends to
the affine map v̄ + Cov(v, k) a as the prompt grows, with an error that the delta method knows (`limits.py`); what the
measured error has beyond that is the non-Gaussian rest, which no length removes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least
from maclaurin.lab.experiments.draws import generator, slope
from maclaurin.lab.experiments.long_prompt import limits
from maclaurin.lab.result import Grid
from maclaurin.ops import checks
from maclaurin.ops.arithmetic import default_scale, repeat_heads

# B prompts, Q queries of a prompt, L tokens, H heads, K key channels, V value channels, R random parts of a prompt

SHORTEST = 16  # tokens of a part of a prompt
SHORTEST_PROMPT = 8 * SHORTEST
PARTS = 8  # of a prompt, at each length
# columns of tables -> fields of a head
NOW = {"s²": "variance", "s²/ln L": "ratio", "regime": "regime", "1/Σp²": "effective", "L/e^{s²}": "effective_predicted"}
NOW |= {name: name for name in ("gain", "error", "sampling", "resampled", "rest")}
LENGTHS = {"L_ε affine": "length_surrogate"} | {name: f"length_{name}" for name in ("linear", "limit", "gradient")}
LATER = {"λ": "spread", "κ": "exponent", "slope": "slope", "−κ/2": "slope_predicted", "verdict": "verdict"}


@dataclass(frozen=True)
class Head:
    """One head over all its queries: medians where a query has a figure of its own.

    error, sampling, resampled, rest: root mean squares over queries, relative to the signal |Σ_vk a|. The error against
    the affine surrogate of the same prompt; its sampling part as predicted for Gaussian tokens, and as halves of the
    prompt differ from the whole, which needs no law; √(error² − sampling²) with the smaller of the two.
    The lengths are L_eps: against that surrogate, against linear attention over the same prompt (2e), against the limit
    (2a), and of the gradient against its limit (2c). Beyond s² = .25 ln L they are `conservative`: too long.
    """

    head: int
    variance: float  # s² of the logits
    ratio: float  # s²/ln L
    regime: str
    effective: float  # 1/Σp²
    effective_predicted: float
    gain: float  # the logits' tilted mean over s²: 1 for Gaussian logits
    error: float
    sampling: float
    resampled: float
    rest: float
    length_surrogate: float
    length_linear: float
    length_limit: float
    length_gradient: float
    conservative: bool
    spread: float  # λ
    exponent: float  # κ
    slope: float  # of log error against log L, over parts of the prompts against the whole
    slope_predicted: float
    verdict: str

    @property
    def linear(self) -> bool:
        """In the limit, as far as these prompts tell."""
        return self.verdict.startswith("linear")


@dataclass(frozen=True)
class LinearisationReport:
    length: int
    eps: float
    heads: list[Head]

    def grids(self, title: str, names: list[str]) -> list[Grid]:
        """What each head does at this length, and from which length on it is linear (* conservative)."""
        now, later = [], []
        for name, one in zip(names, self.heads, strict=True):
            figures = vars(one)
            now.append((name, *(figures[field] for field in NOW.values())))
            marked = [_length_text(figures[field], one.conservative) for field in LENGTHS.values()]
            later.append((name, *marked, *(figures[field] for field in LATER.values())))
        from_here = f"{title}: length from which it is linear to ε = {self.eps:g} (* conservative)"
        return [
            Grid(f"{title}: prompts of {self.length} tokens", ("head", *NOW), now),
            Grid(from_here, ("head", *LENGTHS, *LATER), later),
        ]


def linearisation_report(
    q: Tensor, k: Tensor, v: Tensor, *, eps: float = 0.1, scale: float | None = None, seed: int = 0
) -> LinearisationReport:
    """q (B, Q, H, K): queries of B prompts; k (B, L, G, K), v (B, L, G, V): the tokens that each of them sees; G divides H.

    scale multiplies the logits, 1/√K unless given. There is no causal mask: give queries that come after the tokens. λ is
    estimated from all queries: give several times more than K.
    """
    _check(q, k, v, eps)
    length, heads = k.shape[1], q.shape[2]
    tilt_BHQK = (default_scale(scale, q) * q.double()).transpose(1, 2)
    k_BHLK, v_BHLV = (repeat_heads(x.double(), heads).transpose(1, 2) for x in (k, v))
    k_BHLK, v_BHLV = (x - x.mean(2, keepdim=True) for x in (k_BHLK, v_BHLV))  # cancels in softmax, and in all errors
    logits_BHQL = tilt_BHQK @ k_BHLK.mT
    p_BHQL = torch.softmax(logits_BHQL, -1)
    output_BHQV = p_BHQL @ v_BHLV
    cross_BHVK = v_BHLV.mT @ k_BHLK / length
    affine_BHQV = tilt_BHQK @ cross_BHVK.mT

    variance = logits_BHQL.square().mean(-1)
    trace, key_trace = (x.square().mean(2).sum(-1)[..., None] for x in (v_BHLV, k_BHLK))
    key_shift = logits_BHQL @ k_BHLK / length
    through = (affine_BHQV * (key_shift @ cross_BHVK.mT)).sum(-1)
    # the empirical moments are longer than the true ones, by what sampling adds: (2d)
    shift2 = _without_sampling(affine_BHQV.square().sum(-1), variance * trace, length)
    cross2 = _without_sampling(cross_BHVK.square().sum((-2, -1))[..., None], trace * key_trace, length)
    size = (variance, trace, shift2)
    gradient = limits.gradient_error(*size, key_trace, key_shift.square().sum(-1), cross2, through)
    errors = {"surrogate": limits.surrogate_error(*size), "linear": limits.difference_error(*size)}
    errors |= {"limit": limits.softmax_error(*size)}
    figures = {
        "variance": variance,
        "effective": 1 / p_BHQL.square().sum(-1),
        "gain": (p_BHQL * logits_BHQL).sum(-1) / variance,
        "error2": (output_BHQV - affine_BHQV).square().sum(-1),
        "sampling2": errors["surrogate"] / length,
        "resampled2": _resampled(tilt_BHQK, k_BHLK, v_BHLV, output_BHQV - affine_BHQV, seed),
        "shift2": shift2,
        **{f"length_{name}": limits.prompt_length(error, shift2, eps) for name, error in errors.items()},
        "length_gradient": limits.prompt_length(gradient, cross2, eps),
    }
    spreads = _spreads(tilt_BHQK, k_BHLK)
    slopes = _slopes(logits_BHQL, v_BHLV, output_BHQV, seed)
    made = []
    for index, (spread, fitted) in enumerate(zip(spreads, slopes, strict=True)):
        of_head = {name: figure[:, index] for name, figure in figures.items()}
        made.append(_head(index, of_head, spread, fitted, length, eps))
    return LinearisationReport(length, eps, made)


def _head(index: int, figures: dict[str, Tensor], spread: float, fitted: float, length: int, eps: float) -> Head:
    medians = {name: figure.median().item() for name, figure in figures.items() if not name.endswith("2")}
    ratio = medians["variance"] / math.log(length)
    signal2 = figures["shift2"].sum()
    squares = (figures[name].sum() / signal2 for name in ("error2", "sampling2", "resampled2"))
    error, sampling, resampled = (square.sqrt().item() for square in squares)
    by_chance = min(sampling, resampled)
    rest = math.sqrt(max(error**2 - by_chance**2, 0.0)) if math.isfinite(error) else math.inf
    exponent = limits.query_exponent(spread)
    return Head(
        head=index,
        ratio=ratio,
        regime=limits.regime(ratio),
        effective_predicted=limits.effective_tokens(medians["variance"], length),
        error=error,
        sampling=sampling,
        resampled=resampled,
        rest=rest,
        conservative=ratio > limits.DELTA_VALID,
        spread=spread,
        exponent=exponent,
        slope=fitted,
        slope_predicted=-exponent / 2,
        verdict=_verdict(ratio, error, by_chance, rest, medians["length_surrogate"], eps),
        **medians,
    )


def _verdict(ratio: float, error: float, by_chance: float, rest: float, length: float, eps: float) -> str:
    if ratio >= limits.FROZEN:
        return "no: frozen on the top keys"
    if error <= eps:
        return "linear at this length"
    if ratio > limits.ROOT_RATE:  # even Gaussian tokens would leave a rest at this length
        return "undecided: too short to tell"
    if not rest <= max(eps, by_chance):
        return "no: the tokens are not Gaussian"
    return f"linear from {_length_text(length, ratio > limits.DELTA_VALID)} on"


def _without_sampling(square: Tensor, noise: Tensor, length: int) -> Tensor:
    return ((square - noise / length) / (1 + 1 / length)).clamp(min=0)


def _resampled(tilt_BHQK: Tensor, k_BHLK: Tensor, v_BHLV: Tensor, error_BHQV: Tensor, seed: int) -> Tensor:
    """The mean square by which the error over a half of the prompt differs from that over all of it, which is the variance
    over the whole: a half has twice of it and shares half of that. (B, H, Q)
    """
    source, length = generator(seed, 8), k_BHLK.shape[2]
    total = torch.zeros_like(error_BHQV[..., 0])
    for _ in range(PARTS):
        chosen = torch.randperm(length, generator=source, device="cpu")[: length // 2].to(k_BHLK.device)
        k, v = (x[:, :, chosen] - x[:, :, chosen].mean(2, keepdim=True) for x in (k_BHLK, v_BHLV))
        logits = tilt_BHQK @ k.mT
        total += (torch.softmax(logits, -1) @ v - logits @ v / len(chosen) - error_BHQV).square().sum(-1)
    return total / PARTS


def _spreads(tilt_BHQK: Tensor, k_BHLK: Tensor) -> list[float]:
    """λ of each head: the top eigenvalue of Cov(a)·Σ_k, over the queries of all prompts."""
    tilt_HNK = tilt_BHQK.transpose(0, 1).flatten(1, 2)
    tilt_HNK = tilt_HNK - tilt_HNK.mean(1, keepdim=True)
    covariance_HKK = tilt_HNK.mT @ tilt_HNK / tilt_HNK.shape[1]
    keys_HKK = (k_BHLK.mT @ k_BHLK / k_BHLK.shape[2]).mean(0)
    return torch.linalg.eigvals(covariance_HKK @ keys_HKK).real.amax(-1).tolist()


def _slopes(logits_BHQL: Tensor, v_BHLV: Tensor, output_BHQV: Tensor, seed: int) -> list[float]:
    """Slope of the rms difference between softmax over random parts of the prompts and over all of them, for each head."""
    source, length = generator(seed, 7), logits_BHQL.shape[-1]
    lengths = [SHORTEST << step for step in range(length.bit_length()) if SHORTEST << step <= length // 4]
    squares = []
    for part in lengths:
        total_H = torch.zeros(logits_BHQL.shape[1], dtype=torch.float64, device="cpu")
        for _ in range(PARTS):
            chosen = torch.randperm(length, generator=source, device="cpu")[:part].to(logits_BHQL.device)
            output = torch.softmax(logits_BHQL[..., chosen], -1) @ v_BHLV[:, :, chosen]
            total_H += (output - output_BHQV).square().sum((0, 2, 3)).cpu()
        squares.append(total_H / (1 - part / length))  # a part shares its tokens with the whole
    return [slope(lengths, [square[head].sqrt().item() for square in squares]) for head in range(logits_BHQL.shape[1])]


def _length_text(length: float, conservative: bool) -> str:
    number = f"{length:.0f}" if length < 1e6 else f"{length:.2g}"
    return number + "*" * conservative


def _check(q: Tensor, k: Tensor, v: Tensor, eps: float) -> None:
    checks.heads(q[:, :1], k[:, :1], v[:, :1])  # there are other numbers of queries than of keys
    if v.shape[1] != k.shape[1]:
        raise ValueError(f"v must match k {checks.shape(k)} in tokens, got {checks.shape(v)}")
    at_least(SHORTEST_PROMPT, "the number of tokens of k", k.shape[1])
    if not 0 < eps < 1:
        raise ValueError(f"eps is a relative accuracy and must be between 0 and 1, got {eps}")
