"""MetaLA's statements about a decay that is also the key, as claims about random draws; M1 and M9 are laws of the tests.

An argument beside the generator makes a statement false on purpose: the claim must then say so.

Chou et al.: MetaLA: Unified Optimal Linear Approximation to Softmax Attention Map, arXiv 2411.10741.
"""

# T time, K key channels, V value channels

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, eye, normal
from maclaurin.lab.experiments.dynamics.convert import drawn, to_dsf
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.mixers.base import MixerState
from maclaurin.mixers.feature_maps import PerformerMap
from maclaurin.mixers.metala import MetaLA
from maclaurin.ops import LinearState, linear_attention
from maclaurin.ops.features import Kernel

FORMS = ("parallel", "chunked", "recurrent")
D_MODEL, HEADS, TOKENS = 24, 4, 20
Curves = dict[str, dict[int, float]]  # name -> error by number of states


def attention_map(q_TK: Tensor, k_TK: Tensor, log_alpha_TK: Tensor, form: str = "auto") -> Tensor:
    """The T x T weights of gated linear attention: values of one channel per token read them off."""
    one_hot = eye(len(q_TK)).to(q_TK.dtype)
    q, k, v, a = (part[None, :, None] for part in (q_TK, k_TK, one_hot, log_alpha_TK))
    return linear_attention(q, k, v, a, scale=1.0, normalize=False, form=form, chunk_size=64)[0][0, :, 0]


def random_softmax_map(T: int, generator: Generator) -> Tensor:
    """Of independent scores, causal."""
    future = torch.ones(T, T, dtype=torch.bool, device="cpu").triu(1)
    return normal(T, T, generator=generator).masked_fill(future, -math.inf).softmax(-1)


def row_sums(generator: Generator) -> list[claims.Claim]:
    """M2."""
    log_alpha = F.logsigmoid(normal(40, 1, generator=generator))
    ones = torch.ones_like(log_alpha)
    sums = attention_map(ones, -torch.expm1(log_alpha), log_alpha).sum(1)
    low, high = sums.aminmax()
    error = distance(sums, 1 - log_alpha.cumsum(0).exp()[:, 0])
    log_alpha[0] = -math.inf
    cleared = distance(attention_map(ones, -torch.expm1(log_alpha), log_alpha).sum(1), ones[:, 0])
    outside = (high if high > 1 + 1e-12 else low).item()
    # the ops hold log 0 at -750, and sums of logs beside it keep 12 digits
    return [
        claims.at_most("M2", "a channel's weights sum to 1 - Π α: error", error, 1e-12),
        claims.between("M2 range", "the smallest of these sums, none being above 1", outside, 0.0, 1.0),
        claims.at_most("M2 cleared", "with α = 0 at the first token they sum to 1: error", cleared, 1e-12),
    ]


def stick_breaking(generator: Generator, *, channels: int | None = None) -> list[claims.Claim]:
    """M3: any softmax map, with a channel per row, α_s = P_{s-1}/P_s of its running sums. channels: fewer are too few."""
    T = 16
    softmax = random_softmax_map(T, generator)
    sums = softmax.cumsum(-1)
    alpha_TK = (F.pad(sums, (1, 0))[:, :-1] / sums).T[:, : channels or T]  # token s, the channel of row t
    outside = max(0.0, -alpha_TK.min().item(), alpha_TK.max().item() - 1)
    q = eye(T)[:, : channels or T]
    system = System(alpha_TK[:, None], 1 - alpha_TK[:, None], q[:, None], softmax[:, None])
    log_alpha = alpha_TK.clamp(max=1).log()
    by_logs = max(distance(attention_map(q, -torch.expm1(log_alpha), log_alpha, form), softmax) for form in FORMS)
    text = "a random softmax map of 16 tokens by stick-breaking: error"
    return [
        claims.at_most("M3", f"{text} of the recurrence", distance(system.weights()[0], softmax), 1e-15),
        claims.at_most("M3 logs", f"{text} of the layer's forms, which take log α", by_logs, 1e-12),
        claims.at_most("M3 range", "how far α lies outside of 0 to 1", outside, 1e-15),
    ]


def capacity(generator: Generator, *, T: int = 40, K: int = 6, bound: int = 6) -> list[claims.Claim]:
    """M4. bound: what the rank is claimed to be at most; false if it is below K."""
    q, log_alpha = normal(T, K, generator=generator), F.logsigmoid(normal(T, K, generator=generator))
    metala = attention_map(q, -torch.expm1(log_alpha), log_alpha)[T // 2 :, : T // 2]
    softmax = random_softmax_map(T, generator)[T // 2 :, : T // 2]
    ranks = [int(torch.linalg.matrix_rank(block)) for block in (metala, softmax)]
    left = torch.linalg.svdvals(softmax).square()
    share = (left[K:].sum() / left.sum()).sqrt().item()
    return [
        claims.at_most("M4", f"rank of a block {T // 2} x {T // 2} of MetaLA's map with {K} key channels", ranks[0], bound),
        claims.near("M4 softmax", f"rank of the same block of a random softmax map of {T} tokens", ranks[1], T // 2, 0),
        claims.at_least("M4 error", f"so at best {K} channels leave of that block, relative", share, 1e-3),
    ]


def error_by_states(generator: Generator, *, T: int = 256, K: int = 4, seeds: int = 5) -> tuple[list[claims.Claim], Curves]:
    """Relative errors of the weights between the second half and the first: the series and random features with n states
    beside the best matrix of rank n, which nothing with n states comes nearer than (Eckart, Young).
    """
    q, k = normal(T, K, generator=generator), normal(T, K, generator=generator)
    wanted = _block((q @ k.T * K**-0.5).exp())
    values = torch.linalg.svdvals(wanted).square()
    kernels = {order: Kernel.of(range(order + 1)) for order in range(1, 7)}
    sizes = {order: kernel.feature_count(K) for order, kernel in kernels.items()}

    def left(weights_TT: Tensor) -> float:
        return ((_block(weights_TT) - wanted).norm() / wanted.norm()).item()

    def performer(features: int, seed: int) -> float:
        made = PerformerMap(K, features, seed=seed).double().requires_grad_(False)
        return left(made(q[None, :, None])[0, :, 0] @ made(k[None, :, None])[0, :, 0].T)

    best = {n: (values[n:].sum() / values.sum()).sqrt().item() for n in sizes.values() if n < T // 2}
    # odd orders may divide by a sum that is not positive
    series = {sizes[p]: left(kernels[p].features(q * K**-0.5) @ kernels[p].features(k).T) for p in (2, 4, 6)}
    random = {n: sum(performer(n, seed) for seed in range(seeds)) / seeds for n in sizes.values()}
    share = min(found[n] / best[n] for found in (series, random) for n in found if n in best)
    text = "the smallest error of series and random features over that of the best matrix of the same rank"
    curves = {"best of rank n": best, "series": series, "Performer": random}
    return [claims.at_least("M4 floor", text, share, 1.0)], curves


def _block(weights_TT: Tensor) -> Tensor:
    weights_TT = weights_TT.tril()
    half = weights_TT.shape[0] // 2
    return (weights_TT / weights_TT.sum(-1, keepdim=True))[half:, :half]


def dynamic_state(generator: Generator, *, decay: str = "chosen") -> list[claims.Claim]:
    """M5. decay: "chosen" by the token, "fixed" at 0.9 or "none"."""
    K, V = 4, 3
    old, new = normal(K, V, generator=generator), normal(1, 1, 1, V, generator=generator)
    one_hot = eye(K)[0]  # also 1 - α of the first

    def written(log_decay_K: Tensor) -> Tensor:
        key, log_decay = one_hot.view(1, 1, 1, K), log_decay_K.view(1, 1, 1, K)
        state = LinearState(old[None, None])
        _, after = linear_attention(torch.zeros_like(key), key, new, log_decay, normalize=False, state=state)
        assert isinstance(after, LinearState)
        return after.recurrent[0, 0]

    nothing = torch.zeros_like(one_hot)
    after = {"chosen": written((1 - one_hot).log()), "fixed": written(nothing + math.log(0.9)), "none": written(nothing)}
    error = distance(after[decay], torch.cat([new[0, 0], old[1:]]))
    fixed, none = (distance(after[kind][0], alpha * old[0] + new[0, 0, 0]) for kind, alpha in (("fixed", 0.9), ("none", 1)))
    return [
        claims.at_most("M5", "a token overwrites one slot and leaves the others: error", error, 0.0),
        claims.at_most("M5 fixed", "a fixed decay leaves α·old + new in the slot: error", fixed, 1e-15),
        claims.at_most("M5 none", "no decay leaves old + new in the slot: error", none, 1e-15),
    ]


def unbounded_keys() -> list[claims.Claim]:
    """M6: to weigh a token of lag 200 with 1 behind a fixed decay."""
    log_alpha = torch.full((201, 1), math.log(0.9), dtype=torch.float64, device="cpu")
    ones = torch.ones_like(log_alpha)
    weight = attention_map(ones, ones, log_alpha)[-1, 0].item()
    return [claims.near_relative("M6", "the key that weighs lag 200 with 1 behind α = 0.9", 1 / weight, 1.4e9, 0.02)]


def built(seed: int, **options: str) -> MetaLA:
    """Zeros, w_aug among them, drawn from N(0, 1)."""
    mixer = drawn("metala", D_MODEL, HEADS, seed, **options)
    assert isinstance(mixer, MetaLA)
    return mixer


@torch.no_grad()
def augmentation_starts_as_nothing(generator: Generator, *, seed: int, weight: float = 0.0) -> list[claims.Claim]:
    """M7. weight: of the augmentation; only 0 is removed by the norm.

    ½ + o is rounded to ½·2^-53, and the norm divides that by σ(o), a fiftieth of ½ in a new layer: values are made large
    enough for the state to be what counts.
    """
    x = normal(2, TOKENS, D_MODEL, generator=generator)
    code, off = built(seed), built(seed, aug="off")
    assert code.aug_weight is not None
    code.aug_weight.fill_(weight)
    *_, values = code.in_proj.weight.split(code.in_sizes)
    values.mul_(1024)
    off.load_state_dict({name: value for name, value in code.state_dict().items() if name != "aug_weight"})
    text = "w = 0: ½ is added and the norm removes it, so that a layer with values times 1024 is one without: error"
    return [claims.at_most("M7", text, distance(code(x)[0], off(x)[0]), 1e-15)]


@torch.no_grad()
def augmentation_leaves_the_state(generator: Generator, *, seed: int) -> list[claims.Claim]:
    """M8, token by token."""
    x = normal(1, TOKENS, D_MODEL, generator=generator)
    moved, outputs, maps = 0.0, math.inf, 0.0
    for aug in ("code", "linear", "gate"):
        plain, changed = built(seed, aug=aug), built(seed, aug=aug)
        assert changed.aug_weight is not None
        changed.aug_weight.mul_(-2)
        states: list[MixerState | None] = [None, None]
        for token in x.split(1, dim=1):
            (one, states[0]), (other, states[1]) = plain(token, states[0]), changed(token, states[1])
            first, second = (state.tensors() for state in states if state is not None)
            moved = max(moved, *(distance(first[name], second[name]) for name in first))
            outputs = min(outputs, distance(one, other))
        maps = max(maps, distance(to_dsf(plain, x).weights(), to_dsf(changed, x).weights()))
    differs = "the output does change: smallest change of a token's"
    return [
        claims.at_most("M8", "another w: change of the state after every token, all augmentations", moved, 0.0),
        claims.at_most("M8 past", "change of the weights of all tokens, but for a token's own term", maps, 0.0),
        claims.true("M8 output", differs, f"{outputs:.1e}", outputs > 0, "> 0"),
    ]


@torch.no_grad()
def gla_with_another_key(generator: Generator, *, seed: int, own_key: bool = False) -> list[claims.Claim]:
    """M10. own_key: a key matrix of its own, which is not 1 - α."""
    x = normal(1, TOKENS, D_MODEL, generator=generator)
    mixer = drawn("metala", D_MODEL, HEADS, seed, own_key=own_key)
    system = to_dsf(mixer, x)
    gated = replace(system, write=1 - system.transition)
    parts = (system.read[None], gated.write[None], system.inputs[None], system.transition.log()[None])
    by_op, _ = linear_attention(*parts, scale=1.0, normalize=False)
    error = max(distance(gated.output(), mixer(x)[0]), distance(system.readout(by_op[0]), mixer(x)[0]))
    return [claims.at_most("M10", "the layer against gated linear attention with the key 1 - α: error", error, 1e-10)]


def quotients_overflow(generator: Generator, *, log_alpha: float = -0.5) -> list[claims.Claim]:
    """M11, in float32. log_alpha: a slow decay does not overflow."""
    T, K = 256, 4
    log_alpha_TK = torch.full((T, K), log_alpha, dtype=torch.float32, device="cpu")
    q, k = normal(T, K, generator=generator).float(), -torch.expm1(log_alpha_TK)
    A = log_alpha_TK.cumsum(0).exp()
    naive = ((q * A) @ (k / A).T).tril()
    exact = attention_map(q.double(), k.double(), log_alpha_TK.double())
    errors = [distance(attention_map(q, k, log_alpha_TK, form).double(), exact) for form in FORMS]
    broken = int((~naive.isfinite()).sum())
    return [
        claims.at_least("M11", "entries of (Q⊙A)(K/A)ᵀ that are not finite, float32, T 256, log α -½", broken, 1),
        claims.at_most("M11 forms", "error of all forms on the same, float32", max(errors), 1e-5),
    ]
