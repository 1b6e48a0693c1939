"""DSF's statements D1 to D10 about attention and recurrences as systems, each as claims about a random draw in float64.

An argument beside the generator makes a statement false on purpose: the claim must then say so.
"""

# T time, H heads, K key channels, V value channels, C channels, N states

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from maclaurin import ops
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, eye, normal, ranks
from maclaurin.lab.experiments.dynamics.convert import drawn
from maclaurin.lab.experiments.dynamics.separable import divided, sums
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.lab.result import Curve, Part, Plot
from maclaurin.mixers.gla import log_sigmoid_decay
from maclaurin.mixers.normalized import Normalized
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.ops.features import Kernel


def attention_system(q_THK: Tensor, k_THK: Tensor, v_THV: Tensor) -> System:
    """w_ts = q_t·k_s, not divided by anything."""
    return System(torch.ones_like(k_THK), k_THK, q_THK, v_THV)


def recurrence_is_attention(generator: Generator, *, as_printed: bool = False) -> list[claims.Claim]:
    """D1. as_printed: equation (15b) of the main text in place of appendix B."""
    T, V, K = 8, 3, 3
    recurrence, kernel, printed = 0.0, 0.0, math.inf
    for H in (1, 2):
        q, k, v = (normal(T, H, size, generator=generator) for size in (K, K, V))
        phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
        linear, _ = ops.linear_attention(phi_q[None], phi_k[None], v[None], scale=1.0)
        sums_TH = torch.einsum("thk,thk->th", phi_q, phi_k.cumsum(0))
        eta_TH = normal(T, H, generator=generator).exp()
        plain, _ = ops.linear_attention(q[None], k[None], v[None], scale=1.0, normalize=False)
        cases = [
            (attention_system(phi_q, phi_k, v), sums_TH, linear[0]),
            (attention_system(q, k, v), eta_TH, plain[0] / eta_TH[..., None]),
        ]
        for system, divisor_TH, expected_THV in cases:
            made = divided(system, divisor_TH, as_printed=as_printed)
            of_kernel = torch.einsum("tsuw,sw->tu", made.kernel(), v.flatten(1))
            recurrence = max(recurrence, distance(made.run(), expected_THV))
            kernel = max(kernel, distance(of_kernel, expected_THV.flatten(1)))
            printed = min(printed, distance(divided(system, divisor_TH, as_printed=True).run(), expected_THV))
    text = "linear and normalised attention, 1 and 2 heads, as {}: error against the masked attention"
    return [
        claims.at_most("D1 recurrence", text.format("h = Λh + Bu, y = Ch"), recurrence, 1e-12),
        claims.at_most("D1 kernel", text.format("y = Φu, block lower triangular"), kernel, 1e-12),
        claims.at_least("D1 (15b)", "with 1/η of the token before, as equation (15b) is printed: error", printed, 1e-2),
    ]


def selective_scan_is_its_system(generator: Generator) -> list[claims.Claim]:
    """D2."""
    T, C, N = 8, 3, 4
    u, dt = normal(T, C, generator=generator), F.softplus(normal(T, C, generator=generator))
    rate = normal(C, N, generator=generator).exp()
    b, c = normal(T, N, generator=generator), normal(T, N, generator=generator)
    Lambda_TCN = torch.exp(-dt[..., None] * rate)
    system = System(Lambda_TCN, dt[..., None] * b[:, None], c[:, None].expand(T, C, N), u[..., None])
    expected, _ = ops.selective_scan(u[None], dt[None], rate, b[None], c[None])
    found = (system.run()[..., 0], torch.einsum("tsuw,sw->tu", system.kernel(), u))
    error = max(distance(y, expected[0]) for y in found)
    return [claims.at_most("D2", "S6 as a system: error against the selective scan", error, 1e-12)]


def softplus_is_a_reversed_sigmoid(generator: Generator, *, reversed_sign: bool = True) -> list[claims.Claim]:
    """D3. reversed_sign: False takes σ(x), the forget gate of an LSTM."""
    x = 3 * normal(1000, generator=generator)
    gate = torch.sigmoid(-x if reversed_sign else x)
    error = max(distance(torch.exp(-power * F.softplus(x)), gate**power) for power in (0.3, 1.0, 4.0))
    return [claims.at_most("D3", "e^(-a·softplus(x)) = σ(-x)^a, a = 0.3, 1, 4: error", error, 1e-14)]


def truncated_series(generator: Generator, *, scaled: bool = True, z: float = 3.5) -> Part:
    """D4. scaled: False leaves out the factors √(1/p!)."""
    K, points, orders = 3, 30, list(range(9))
    q, k = normal(points, K, generator=generator), normal(points, K, generator=generator)
    q = q * (z / (q @ k.T).abs().max())
    exact = (q @ k.T).exp()
    attention = exact.tril() / exact.tril().sum(-1, keepdim=True)
    errors, bounds, of_map = [], [], []
    for order in orders:
        found = torch.ones_like(exact)
        if order:
            kernel = Kernel.of(range(order + 1))
            kernel = kernel if scaled else Kernel(kernel.orders, (1.0,) * (order + 1))
            found = kernel.features(q) @ kernel.features(k).T
        sums = found.tril().sum(-1, keepdim=True)
        positive = (sums > 0)[:, 0]
        errors.append(distance(found, exact))
        bounds.append(math.exp(z) * z ** (order + 1) / math.factorial(order + 1))
        of_map.append(distance((found.tril() / sums)[positive], attention[positive]))
    share = max(error / bound for error, bound in zip(errors, bounds, strict=True))
    even = of_map[::2]
    falls = all(later < earlier for earlier, later in pairwise(even))
    steps, far = " ".join(f"{error:.2g}" for error in even), even[-1] < even[0] / 50
    text = "the error of the attention map falls with P = 0, 2, …, 8, at last to under a fiftieth"
    made = [
        claims.at_most("D4 bound", "series up to order P = 0..8: error over e^z z^(P+1)/(P+1)!, at worst", share, 1.0),
        claims.true("D4 map", text, steps, falls and far, "0.46 to 0.0026 in another draw"),
    ]
    curves = [
        Curve("exp(q·k)", orders, errors),
        Curve("bound", orders, bounds, dashed=True),
        Curve("attention map", orders[::2], even),
    ]
    caption = "Softmax cut at order P, scores up to 3.5: largest error of the kernel, its bound, and of the map (even P)."
    return Part(made, plots=[Plot("series", caption, "order P", "largest error", curves, log_y=True)])


def rank_of_kernels(generator: Generator, *, points: int = 128, draws: int = 20) -> list[claims.Claim]:
    """D5: a finite number of features cannot be exp. Few points cannot show it."""
    made = []
    for K, expected in ((2, 74), (4, 128), (8, 128)):
        q, k = normal(draws, points, K, generator=generator), normal(draws, points, K, generator=generator)
        exponential = ranks((q @ k.mT).exp())
        linear = ranks((F.elu(q) + 1) @ (F.elu(k) + 1).mT)
        low, high = int(exponential.min()), int(exponential.max())
        # with 2 channels the singular values fall below 1e-10 somewhere between 53 and 78, by the draw
        text = f"rank of the matrix exp(q·k) of 128 points, {K} channels, mean of {draws} draws ({low} to {high})"
        made += [
            claims.near_relative(f"D5 exp m={K}", text, exponential.mean().item(), expected, 0.1),
            claims.near(f"D5 elu m={K}", f"rank of φ(q)·φ(k), φ = elu + 1, {K} channels", linear.mean().item(), K, 0),
        ]
    return made


def rank_of_blocks(generator: Generator, *, states: int = 3) -> list[claims.Claim]:
    """D6. The claim is about 3 states, and false with more."""
    T, K, bound = 40, states, 3
    q, k = normal(1, T, 1, K, generator=generator), normal(1, T, 1, K, generator=generator)
    one_hot = eye(T)[None, :, None]  # as values: the outputs are the map itself
    log_alpha = log_sigmoid_decay(normal(1, T, 1, K, generator=generator), 1.0)
    linear, _ = ops.linear_attention(F.elu(q) + 1, F.elu(k) + 1, one_hot)
    plain, _ = ops.linear_attention(q, k, one_hot, normalize=False)
    normalised = plain * normal(1, T, 1, 1, generator=generator).exp()
    metala, _ = ops.linear_attention(q, -torch.expm1(log_alpha), one_hot, log_alpha, normalize=False)
    # scores of 8 channels, because the rank of exp(q·k) of 3 is full only beyond what float64 resolves
    q8, k8 = normal(1, T, 1, 8, generator=generator), normal(1, T, 1, 8, generator=generator)
    softmax, _ = ops.softmax_attention(q8, k8, one_hot, scale=1.0)
    t = T // 2
    *found, full = (ranks(y[0, t:, 0, :t]).item() for y in (linear, normalised, metala, softmax))
    text = f"rank of the block Φ[{t}:, :{t}] of {{}} attention with {bound} states"
    return [
        *(
            claims.at_most(f"D6 {name}", text.format(name), rank, bound)
            for name, rank in zip(("linear", "normalised", "metala"), found, strict=True)
        ),
        claims.near("D6 softmax", f"rank of the same block of softmax attention, {t} x {t}", full, t, 0),
    ]


def more_states(generator: Generator, *, read: float = 0.0) -> list[claims.Claim]:
    """D7 (lemma 2). read: how strongly the added states are read; only 0 changes nothing."""
    T, H, N, V, extra = 9, 2, 5, 3, 4
    # of Λ, B and C in turn: those that are there, and those that are added
    pieces = [[normal(T, H, count, generator=generator) for count in (N, extra)] for _ in range(3)]
    u = normal(T, H, V, generator=generator)
    pieces[2][1] *= read
    (A, _), (B, _), (C, _) = pieces
    before = System(A, B, C, u)
    A, B, C = (torch.cat(both, -1) for both in pieces)
    after = System(A, B, C, u)
    change = distance(after.run(), before.run())
    return [claims.at_most("D7", "states that nothing reads change nothing: difference of y", change, 1e-14)]


def softmax_eigenvalues(scores_TS: Tensor) -> Tensor:
    """η_{t-1}/η_t (…,T-1) of softmax, from log-sums of the causal scores: no exponential overflows."""
    future = torch.ones(scores_TS.shape[-2:], dtype=torch.bool, device="cpu").triu(1)
    log_eta = scores_TS.masked_fill(future, -math.inf).logsumexp(-1)
    return (log_eta[..., :-1] - log_eta[..., 1:]).exp()


def eigenvalues_above_one(generator: Generator, *, draws: int, one_query: bool = False) -> list[claims.Claim]:
    """D8. one_query: all tokens ask the same, so that no eigenvalue of attention is above 1."""
    T, K = 64, 16
    q, k = normal(draws, T, K, generator=generator), normal(draws, T, K, generator=generator)
    if one_query:
        q = q[:, :1].expand_as(q)
    share = (softmax_eigenvalues(q @ k.mT / math.sqrt(K)) > 1).double().mean().item()
    text = f"share of softmax's eigenvalues η_(t-1)/η_t above 1, T {T}, {K} channels, {draws} draws"
    return [claims.between("D8 softmax", text, share, 0.35, 0.55)]


def eigenvalues_of_recurrences(systems: dict[str, System]) -> list[claims.Claim]:
    """D8, of systems that `to_dsf` made."""
    made = []
    for name, system in systems.items():
        values = system.eigenvalues()
        low, high = values.min().item(), values.max().item()
        text = f"the eigenvalues of {name} lie in (0, 1)"
        made.append(claims.true(f"D8 {name}", text, f"{low:.4g} to {high:.4g}", 0 < low and high < 1, "in (0, 1)"))
    return made


def normalised_attention(generator: Generator, *, seed: int, name: str = "normalized") -> list[claims.Claim]:
    """D9: unnormalised linear attention times 1/η, which feels the size of the keys. name: of a mixer in its place."""
    T, d, H, factor = 9, 8, 2, 3.0
    x = normal(1, T, d, generator=generator)
    normalized, mixer = (drawn(each, d, H, seed, rotary="none") for each in ("normalized", name))
    assert isinstance(normalized, Normalized) and isinstance(mixer, ProjectedMixer)
    with torch.no_grad():
        before, _ = mixer(x)
        q, k, v = (part.view(1, T, H, -1) for part in normalized.qkv_proj(x).split(d, dim=-1))
        plain, _ = ops.linear_attention(q, k, v, scale=1.0, normalize=False)
        gain = torch.exp(-normalized.eta_proj(x))[..., None]
        error = distance(before, normalized.out_proj((plain * gain).flatten(2)))
        mixer.qkv_proj.weight[d : 2 * d] *= factor
        growth = (mixer(x)[0].norm() / before.norm()).item()
    text = "normalised attention against linear attention without divisor, times e^(-W x)"
    return [
        claims.at_most("D9 form", text, error, 1e-12),
        claims.near("D9 keys", "its output when all keys grow threefold grows by", growth, factor, 1e-10),
    ]


def one_query(generator: Generator, *, queries: int = 1) -> list[claims.Claim]:
    """D10. The claim is false when queries differ."""
    T, K = 64, 16
    q = normal(queries, K, generator=generator)[torch.arange(T, dtype=torch.long, device="cpu") % queries]
    k = normal(T, K, generator=generator)
    softmax = softmax_eigenvalues(q @ k.T / math.sqrt(K)).max().item()
    linear = attention_system((F.elu(q) + 1)[:, None], (F.elu(k) + 1)[:, None], k[:, None])
    ratios = divided(linear, sums(linear)).transition[1:]
    text = "one query for all tokens: the largest eigenvalue of {} attention"
    return [
        claims.at_most("D10 softmax", text.format("softmax"), softmax, 1.0),
        claims.at_most("D10 linear", text.format("linear"), ratios.max().item(), 1.0),
    ]
