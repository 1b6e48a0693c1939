"""LUNA's statements about learnt features, as claims about random draws; L3, that all forms agree, is a law of the tests.

An argument beside the generator makes a statement false on purpose: the claim must then say so.

Shahbazi et al.: LUNA: Linear Universal Neural Attention with Generalization Guarantees, arXiv 2512.08061.
"""

# P points, K key channels, T time, m projections

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, normal, seeded, slope
from maclaurin.mixers import build_mixer
from maclaurin.mixers.feature_maps import PerformerMap
from maclaurin.mixers.luna import ChannelBank, Luna, LunaMap

K = 8
Curves = dict[str, dict[int, float]]  # name -> error by number of projections
Function = Callable[[Tensor], Tensor]


class Functions(nn.Module):
    """ψ as given functions of one number."""

    def __init__(self, *functions: Function) -> None:
        super().__init__()
        self.functions = functions
        self.num_channels = len(functions)

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([function(u) for function in self.functions], dim=-1)


def projected(weight_mK: Tensor, channels: nn.Module, *, envelope: bool = False) -> LunaMap:
    """A map with this W, and h(x) = exp(-|x|²/2) with an envelope."""
    with seeded(0):  # its own draws are replaced
        made = LunaMap(K, len(weight_mK), channels, envelope=envelope).double()
    made.weight = nn.Parameter(weight_mK)
    if made.envelope is not None:
        nn.init.ones_(made.envelope["a"])
    return made


def gaussian_map(projections: int, channels: nn.Module, generator: Generator, *, envelope: bool = False) -> LunaMap:
    """W ~ N(0, I) in place of N(0, 1/K)."""
    return projected(normal(projections, K, generator=generator), channels, envelope=envelope)


def default_map(key_dim: int, projections: int, num_channels: int, seed: int, *, nonneg: bool = True) -> LunaMap:
    """As a new LUNA layer has it."""
    with seeded(seed):
        return LunaMap(key_dim, projections, ChannelBank(num_channels, nonneg=nonneg)).double()


@torch.no_grad()
def wave_bank(hidden: int, reach: float) -> tuple[ChannelBank, float]:
    """A network whose two channels are cosine and sine on [-reach, reach], by least squares, and the largest error left."""
    with seeded(0):
        bank = ChannelBank(2, bank="shared", width=hidden, nonneg=False).double()
    grid, knots = (torch.linspace(-reach, reach, count, dtype=torch.float64, device="cpu") for count in (4001, hidden))
    bank.weight_in.fill_(1)
    bank.bias_in.copy_(2 * reach / hidden - knots)
    units = torch.cat([(grid[:, None] + bank.bias_in).relu(), torch.ones_like(grid)[:, None]], dim=1)
    wanted = torch.stack([grid.cos(), grid.sin()], dim=1)
    solution = torch.linalg.lstsq(units, wanted).solution
    bank.weight_out.copy_(solution[:-1].T)
    bank.bias_out.copy_(solution[-1])
    return bank, distance(bank(grid), wanted)


@torch.no_grad()
def features_of(feature_map: LunaMap, x_PK: Tensor) -> Tensor:
    """φ of points (P, K) -> (P, features), of the points as they are: LUNA's scaling by K^(-1/4) is undone."""
    scaled: Tensor = feature_map((x_PK * x_PK.shape[-1] ** 0.25)[None, :, None])
    return scaled[0, :, 0]


def rmse(maps: Iterable[LunaMap], x_PK: Tensor, y_PK: Tensor, exact_P: Tensor) -> float:
    """Of φ(x)·φ(y) − exact over pairs of points and over maps."""
    errors = [((features_of(each, x_PK) * features_of(each, y_PK)).sum(-1) - exact_P).square().mean() for each in maps]
    return torch.stack(errors).mean().sqrt().item()


def kernels_are_positive(generator: Generator, *, seed: int, sign: float = 1.0) -> list[claims.Claim]:
    """L1, on 100 points: positive semi-definite. sign: of half of the features in the kernel; -1 makes it indefinite."""
    x = normal(100, K, generator=generator)
    made = []
    for nonneg, name in ((True, "ReLU at the end"), (False, "signed")):
        features = features_of(default_map(K, 16, 8, seed, nonneg=nonneg), x)
        one, other = features.chunk(2, dim=-1)
        values = torch.linalg.eigvalsh(one @ one.T + sign * other @ other.T)
        text = f"LUNA's kernel, {name}: smallest eigenvalue over the largest"
        made.append(claims.at_least(f"L1 {name.split()[0]}", text, (values[0] / values[-1]).item(), -1e-10))
    return made


@torch.no_grad()
def outputs_are_averages(generator: Generator, *, seed: int, nonneg: bool = True) -> list[claims.Claim]:
    """L2. nonneg: False leaves out the last ReLU."""
    T, d, H = 40, 24, 3
    features = features_of(default_map(K, 16, 8, seed, nonneg=nonneg), normal(60, K, generator=generator))
    mixer = _mixer(d, H, seed, nonneg=nonneg, norm="sum" if nonneg else "none")
    nn.init.eye_(mixer.out_proj.weight)
    x = normal(2, T, d, generator=generator)
    v = mixer.project(x).v
    y = mixer(x)[0].unflatten(-1, (H, -1))
    outside = torch.maximum(v.cummin(1).values - y, y - v.cummax(1).values).max().item()
    least = (features @ features.T).min().item()
    return [
        claims.at_least("L2 weights", "the smallest weight φ(x)·φ(y) of 60 points", least, 0.0),
        claims.at_most("L2 averages", "how far outputs lie outside of the values seen so far", outside, 1e-12),
    ]


def performer_is_a_case(
    generator: Generator, *, repeats: int, psi: Function = torch.exp
) -> tuple[list[claims.Claim], dict[int, tuple[float, float]]]:
    """L4, and (measured, predicted) error by number of projections. psi: another function is no Performer.

    For one pair, f = exp(w·(x+y) - (|x|²+|y|²)/2) has mean exp(x·y) and relative variance e^{|x+y|²} - 1.
    """
    performer = PerformerMap(K, 64).double()
    same = gaussian_map(64, Functions(psi), generator, envelope=True)
    points = 0.5 * normal(200, K, generator=generator)  # LUNA clips its envelope where |x|² > 20
    with torch.no_grad():
        same.weight.copy_(performer.weight)
        error = distance(features_of(same, points), performer((points * K**0.25)[None, :, None])[0, :, 0])
    pair = normal(2, K, generator=generator)
    pair = pair / pair.norm(dim=-1, keepdim=True) * 0.7
    exact = (pair[0] @ pair[1]).exp()
    spread = exact.item() * math.sqrt(math.expm1(pair.sum(0).square().sum().item()))
    found = {}
    for m in (1024, 4096, 16384):
        maps = (gaussian_map(m, Functions(psi), generator, envelope=True) for _ in range(repeats))
        found[m] = (rmse(maps, pair[:1], pair[1:], exact), spread / math.sqrt(m))
    text = "one pair, {} projections, {} draws: error against exp(x·y)"
    return [
        claims.at_most("L4", "LUNA with ψ = exp, h = e^(-|x|²/2) and Performer's W against Performer: error", error, 1e-12),
        *(
            claims.near_relative(f"L4 m={m}", text.format(m, repeats), error, predicted, 0.25)
            for m, (error, predicted) in found.items()
        ),
    ], found


def fourier_features_are_a_case(
    generator: Generator, *, draws: int, waves: Sequence[Function] = (torch.cos, torch.sin)
) -> list[claims.Claim]:
    """L5. waves: others than cosine and sine are no Fourier features."""
    x, y = normal(500, K, generator=generator), normal(500, K, generator=generator)
    exact = torch.exp(-(x - y).square().sum(-1) / 2)
    made = []
    for m, expected in ((64, 0.084), (256, 0.045), (1024, 0.022), (4096, 0.011)):
        maps = (gaussian_map(m, Functions(*waves), generator) for _ in range(draws))
        text = f"500 pairs, {m} projections to (cos, sin): error against the Gaussian kernel"
        made.append(claims.near_relative(f"L5 m={m}", text, rmse(maps, x, y, exact), expected, 0.1))
    return made


def fitted_networks(generator: Generator, *, hidden: int = 64, limit: float = 0.02) -> list[claims.Claim]:
    """L6. limit: how small the error of the fit must be; few hidden units do not reach it."""
    bank, fit = wave_bank(hidden, 6.0)
    waves = gaussian_map(256, Functions(torch.cos, torch.sin), generator)
    x = normal(50, K, generator=generator)
    x = x * (6 / (x @ waves.weight.T.detach()).abs().max())  # inside of what was fitted
    exact = torch.exp(-torch.cdist(x, x).square() / 2)
    learnt, sampled = (
        distance(features @ features.T, exact)
        for features in (features_of(projected(waves.weight, bank), x), features_of(waves, x))
    )
    # of one projection: |ĉĉ' + ŝŝ' - cc' - ss'| with both errors at most `fit`
    share = learnt / (sampled + 2 * fit * (math.sqrt(2) + fit))
    return [
        claims.at_most("L6 fit", f"ψ of {hidden} hidden units fitted to cos and sin on -6 to 6: error", fit, limit),
        claims.at_most("L6", "its kernel's error over that of Fourier features plus that of the fit", share, 1.0),
    ]


def error_splits(generator: Generator, *, draws: int, most: int) -> tuple[list[claims.Claim], Curves]:
    """L7, and the errors by hidden units and projections: a floor that the fit sets, and sampling above it."""
    sizes = [m for m in (64, 256, 1024, 4096, 16384) if m <= most]
    x, y = 0.5 * normal(100, K, generator=generator), 0.5 * normal(100, K, generator=generator)
    exact = torch.exp(-(x - y).square().sum(-1) / 2)
    banks = {f"{hidden} hidden units": wave_bank(hidden, 10.0)[0] for hidden in (8, 12, 64)}
    curves: Curves = {**{name: {} for name in banks}, "cos, sin": {}}
    for m in sizes:
        waves = [gaussian_map(m, Functions(torch.cos, torch.sin), generator) for _ in range(draws)]
        curves["cos, sin"][m] = rmse(waves, x, y, exact)
        for name, bank in banks.items():
            curves[name][m] = rmse((projected(each.weight, bank) for each in waves), x, y, exact)
    last, before = sizes[-1], sizes[-2]
    few, some, many = (curves[name] for name in banks)
    floors = " ".join(f"{curve[last]:.2g}" for curve in (few, some, many))
    falls = few[last] > some[last] > many[last]
    sampling = f"64 hidden units: slope of the error against m = 64 to {last}, log-log"
    flat = f"8 hidden units: error at m = {last} over that at {before}"
    return [
        claims.near("L7 sampling", sampling, slope((64, last), (many[64], many[last])), -0.5, 0.1),
        claims.near("L7 floor", flat, few[last] / few[before], 1.0, 0.1),
        claims.true("L7 width", f"the error at m = {last} falls with 8, 12, 64 hidden units", floors, falls, "falls"),
    ], curves


def rank_is_live_features(generator: Generator, *, seed: int, inits: int = 6, points: int = 400) -> list[claims.Claim]:
    """L8. Fewer points than features cannot have their rank."""
    ranks, lives = [], []
    for init in range(inits):
        features = features_of(default_map(64, 32, 4, seed + init), normal(points, 64, generator=generator))
        lives.append(int((features != 0).any(0).sum()))
        ranks.append(int(torch.linalg.matrix_rank(features @ features.T, rtol=1e-13)))
    text = f"rank of the kernel of {points} points against features that are ever non-zero, of 128, {inits} inits"
    return [
        claims.true("L8", text, f"{ranks} and {lives}", ranks == lives, "equal"),
        claims.at_most("L8 bound", "the largest of these ranks", max(ranks), 128),
    ]


@torch.no_grad()
def cost_is_linear(*, seed: int, name: str = "luna") -> tuple[list[claims.Claim], dict[int, float]]:
    """L9: seconds of the processor, the best of three, so that other processes do not count. name: of another mixer."""
    with seeded(seed):
        mixer = build_mixer(name, 32, 1)
    mixer(torch.zeros(1, 64, 32, dtype=torch.float32, device="cpu"))  # what is made once is not counted
    seconds = {}
    for length in (1024, 2048, 4096, 8192, 16384):
        x = torch.zeros(1, length, 32, dtype=torch.float32, device="cpu")
        seconds[length] = math.inf
        for _ in range(3):
            started = time.process_time()
            mixer(x, return_state=False)
            seconds[length] = min(seconds[length], time.process_time() - started)
    grown = mixer.state_nbytes(16384) / mixer.state_nbytes(1024)
    rate, text = slope((1024, 16384), (seconds[1024], seconds[16384])), "slope of processor time against T = 1024 to 16384"
    return [
        claims.between("L9 time", f"{name}: {text}, log-log", rate, 0.7, 1.2),
        claims.near("L9 state", f"{name}: bytes of state at T = 16384 over those at 1024", grown, 1.0, 0.0),
    ], seconds


def generalisation_gap(
    generator: Generator, *, seed: int, draws: int, sizes: Sequence[int], learnable: bool = False
) -> tuple[list[claims.Claim], dict[int, float]]:
    """L10: the gap between training and test of one layer of bounded weights, max over weights of (1/n) Σ σ_i f(x_i).

    σ are random signs, on which nothing can be learnt. learnable: signs that the tokens tell, so that the gain stays.
    """
    T, d = 8, 8
    options = {"causal": False, "num_features": 32, "num_channels": 4, "channel_width": 16, "softplus": True}
    found = {}
    for n in sizes:
        gains = []
        for draw in range(draws):
            x = normal(n, T, d, generator=generator).float()
            signs = torch.randperm(n, generator=generator, device="cpu") % 2 * 2 - 1  # as many of each: a constant gains 0
            told = x[:, :, 0].sum(1).sign() if learnable else signs
            gains.append(_best_gain(_mixer(d, 1, seed + draw, **options).float(), x, told))
        found[n] = sum(gains) / draws
    low, high = sizes[0], sizes[-1]
    rate = slope((low, high), (found[low], found[high]))
    text = f"gap of one layer on random signs, n = {low} to {high}, {draws} draws: slope, log-log"
    return [claims.near("L10", text, rate, -0.5, 0.15)], found


def _best_gain(mixer: Luna, x: Tensor, signs: Tensor, steps: int = 40) -> float:
    """Gradient ascent inside of the first norms, which no trainer does; the best readout of norm 1 in closed form."""
    weights = list(mixer.parameters())
    norms = [weight.detach().norm() for weight in weights]
    optimizer = torch.optim.Adam(weights, lr=0.1, maximize=True)
    best = 0.0
    for _ in range(steps):
        gain = (mixer(x)[0].mean(1) * signs[:, None]).mean(0).norm()
        best = max(best, gain.item())
        optimizer.zero_grad()
        gain.backward()
        optimizer.step()
        with torch.no_grad():
            for weight, norm in zip(weights, norms, strict=True):
                weight.mul_((norm / weight.norm().clamp(min=1e-12)).clamp(max=1))
    return best


def start(*, seed: int, draws: int = 20) -> list[claims.Claim]:
    """L11: where training begins."""
    entropies = []
    generator = torch.Generator().manual_seed(seed)
    for draw in range(draws):
        made = default_map(32, 16, 8, seed + draw)
        q, k = (features_of(made, normal(50, 32, generator=generator)) for _ in range(2))
        weight = q @ k.T
        entropies.append(torch.special.entr(weight / weight.sum(-1, keepdim=True)).sum(-1).mean().item())
    entropy = statistics.fmean(entropies)
    silent = statistics.fmean(default_map(1, 1, 8, seed + part).dead_fraction() for part in range(5 * draws))
    return [
        claims.near("L11 entropy", "a new map: entropy of rows over 50 keys (log 50 = 3.912)", entropy, 3.89, 0.02),
        claims.near("L11 silent", "share of its channels that are 0 for all u in -4 to 4", silent, 0.17, 0.04),
    ]


def _mixer(d_model: int, num_heads: int, seed: int, **options: Any) -> Luna:
    with seeded(seed):
        mixer = build_mixer("luna", d_model, num_heads, rotary="none", **options).double()
    assert isinstance(mixer, Luna)
    return mixer
