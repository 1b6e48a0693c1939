"""Do two queries get the same weights? InLine's argument against dividing by a sum, checked.

A pair of queries of a trained model counts as confused if they differ by more than 1e-3 of a query's mean length and their
weights by less than a tolerance of their own length, 1e-3 in the count. The paper's tolerance was not found.
"""

# B examples, H heads, Q queries, S keys, T tokens, C channels

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least
from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import generator, normal, seeded
from maclaurin.lab.experiments.injectivity.collisions import Draw, all_checks, first_order_plot
from maclaurin.lab.result import Curve, Grid, Part, Plot, Result
from maclaurin.lab.traces import Traced, models
from maclaurin.mixers import build_mixer
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import available_mixers, mixer_entry

PAPER = "InLine, arXiv 2412.06590, in words"
ROWS = {"softmax": one("softmax"), "linear": one("linear"), "inline": one("inline")}
CAPTION = "Pairs of distinct queries of trained models whose weights are closer than a tolerance, as a share of all pairs."
NOTES = (
    "Injective means that no two queries are confused in exact arithmetic. How far apart their weights are is "
    "another matter: InLine's differ by σ_min·scale/N at least, which shrinks with the number of keys.",
    "A norm of the output undoes a query's length just as a sum of the weights does: mixers with one confuse rays.",
    "The paper counts confusions in DeiT-T on ImageNet; its tolerance and counts were not found.",
)
SAME = 1e-5  # a relative change of the output that is rounding, or the epsilon of a norm
NEGATIVE = "all negative, q and 2q"
# a random q -> two queries that a collision is asked for
PAIRS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "a ray, q and 3q": lambda q: (q, 3 * q),
    "a sign, q and −q": lambda q: (q, -q),
    "another, q and q'": lambda q: (q, q.roll(1, dims=-1)),
    NEGATIVE: lambda q: (-q.abs(), -2 * q.abs()),
}
TOLERANCE = 1e-3
TOLERANCES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)


def injectivity(
    *,
    quick: bool = False,
    seed: int = 0,
    keys: int = 50,
    dim: int = 8,
    ties: bool = False,
    inline_scale: float | None = None,
    checkpoint: str | None = None,
    text: str | None = None,
    steps: int | None = None,
) -> Result:
    """Do two queries get the same weights? Constructed collisions, a bound, every mixer, and a trained model's queries.

    keys, dim: of the random cases. ties: one channel the same in all keys, with which no mechanism can be injective.
    inline_scale: of InLine's scores; 1/√dim unless given, with which it is the first order of softmax.
    checkpoint: the folder of a language model to look into, instead of vision models trained here on digits.
    text: what it reads, a file, folder or corpus; by default validation text of its own or of the standard library.
    steps: of the training.
    """
    at_least(2, "dim", dim)
    at_least(dim + 2, "keys", keys)
    steps = (250 if quick else 1000) if steps is None else steps
    draw = Draw.of(keys, dim, seed, ties=ties, inline_scale=inline_scale)
    examples = 40 if quick else 360
    traced = models(ROWS, checkpoint, text, steps=steps, seed=seed, examples=examples, tokens=256)
    found = [confusion(each) for each in traced]
    curves = [Curve(each.name, TOLERANCES, each.shares) for each in found]
    plot = Plot("confusion", CAPTION, "tolerance, relative to the weights", "share of pairs confused", curves, log_x=True)
    settings: dict[str, Any] = {"keys": keys, "dim": dim, "ties": ties, "inline_scale": draw.inline_scale, "seed": seed}
    settings |= {"model": checkpoint or "digits, 2 layers of width 32", "examples": examples}
    settings |= {} if checkpoint else {"steps": steps}
    constructed = Part(all_checks(draw), [_mixer_grid(seed)], [first_order_plot(draw)])
    trained = Part(claims_of(found, checkpoint), [_confusion_grid(found)], [plot])
    return Result.of("injectivity", "Do two queries get the same weights?", settings, [constructed, trained], NOTES)


def told_apart(name: str, *, seed: int = 0, dim: int = 8, tokens: int = 50) -> dict[str, float] | None:
    """By pair of queries, the relative change of a fresh mixer's heads; None for a mixer without queries and keys.

    One head, in float64, without rotary positions and convolution, which would only change which queries these are. Norms,
    gates and decays take part, so this asks what the model can tell apart, not only the weights.
    """
    entry = mixer_entry(name)
    if not issubclass(entry.mixer, ProjectedMixer):
        return None
    known = entry.options()
    plain: dict[str, Any] = {"rotary": "none", "conv_width": 0, "activation": "identity", "key_dim": dim}
    with seeded(seed):
        mixer = build_mixer(name, dim, 1, **{option: value for option, value in plain.items() if option in known}).double()
    assert isinstance(mixer, ProjectedMixer)
    return {name: output_change(mixer, pair, seed, tokens) for name, pair in PAIRS.items()}


@torch.no_grad()
def output_change(mixer: ProjectedMixer, pair: Callable[[Tensor], tuple[Tensor, Tensor]], seed: int, tokens: int) -> float:
    """|y(p) − y(q)| / |y(p)| of the heads at the last token for a pair of queries p and q."""
    source, size = generator(seed), mixer.num_heads * mixer.key_dim
    query = normal(size, generator=source)
    qkv_BTC = normal(1, tokens, sum(mixer.qkv_sizes), generator=source).repeat(2, 1, 1)
    qkv_BTC[0, -1, :size], qkv_BTC[1, -1, :size] = pair(query)
    x_BTD = normal(1, tokens, mixer.d_model, generator=source).repeat(2, 1, 1)
    first, second = heads_output(mixer, x_BTD, qkv_BTC)[:, -1]
    return ((first - second).norm() / first.norm().clamp(min=1e-300)).item()


def heads_output(mixer: ProjectedMixer, x_BTD: Tensor, qkv_BTC: Tensor) -> Tensor:
    """What the heads say (B, T, inner_dim), before the last projection, if queries, keys and values were these."""
    found: list[Tensor] = []
    given = mixer.qkv_proj.register_forward_hook(lambda module, args, output: qkv_BTC)
    keep = mixer.out_proj.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    with given, keep:
        mixer(x_BTD, return_state=False)
    return found[0]


@dataclass(frozen=True)
class Confusion:
    """Of one model. shares: of all pairs of distinct queries, the share with weights closer than each of TOLERANCES."""

    name: str
    pairs: float  # confused pairs per example, over all layers and heads, at TOLERANCE
    of: float  # pairs of distinct queries per example
    shares: list[float]
    layers: list[float]  # the share at TOLERANCE by layer


@torch.no_grad()
def confusion(traced: Traced) -> Confusion:
    """Queries of an image share all keys. In a text those of its second half are compared over the keys of its first."""
    close, distinct = [], []
    for layer in traced.layers():
        weight_BHTS, query_BTHK = layer.weights(), layer.q.double()
        if traced.grid is None:
            half = weight_BHTS.shape[-1] // 2
            weight_BHTS, query_BTHK = weight_BHTS[:, :, half:, :half], query_BTHK[:, half:]
        counts = torch.stack([_pairs(w, q.transpose(0, 1)) for w, q in zip(weight_BHTS, query_BTHK, strict=True)])
        close.append(counts[:, 1:].double().mean(0))
        distinct.append(counts[:, 0].double().mean(0))
    all_close, all_distinct = torch.stack(close).sum(0), torch.stack(distinct).sum().item()
    at = TOLERANCES.index(TOLERANCE)
    shares = [float(share) for share in all_close / max(all_distinct, 1)]
    layers = [float(one[at] / max(float(of), 1)) for one, of in zip(close, distinct, strict=True)]
    return Confusion(traced.name, float(all_close[at]), all_distinct, shares, layers)


def _pairs(weight_HQS: Tensor, query_HQK: Tensor) -> Tensor:
    """How many pairs are distinct, and how many of them closer than each tolerance."""
    apart = torch.cdist(query_HQK, query_HQK) > 1e-3 * query_HQK.norm(dim=-1).mean()
    once = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    # cdist by products would lose small distances
    gap = torch.cdist(weight_HQS, weight_HQS, compute_mode="donot_use_mm_for_euclid_dist")
    relative = gap / weight_HQS.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    counted = apart & once
    return torch.stack([counted.sum(), *((counted & (relative < tolerance)).sum() for tolerance in TOLERANCES)])


def claims_of(found: list[Confusion], checkpoint: str | None) -> list[claims.Claim]:
    """What the paper says of softmax, linear and InLine, where all three are there."""
    if checkpoint is not None:
        return [claims.not_applicable("confusion", "softmax ≈ none, linear many, InLine far fewer", "one model only", PAPER)]
    by_name = {each.name: each for each in found}
    softmax, linear, inline = (by_name[name].pairs / by_name[name].of for name in ROWS)
    fewer = "trained InLine: share of pairs confused over that of linear attention"
    return [
        claims.at_most("confusion softmax", "trained softmax: share of pairs confused, next to none", softmax, 0.01, PAPER),
        claims.at_least("confusion linear", "trained linear: the same, many", linear, 0.1, PAPER),
        claims.at_most("confusion inline", fewer, inline / linear, 0.2, PAPER)
        if linear >= 1e-3
        else claims.not_applicable("confusion inline", fewer, f"linear confuses next to none, {linear:.2g}", PAPER),
    ]


def _mixer_grid(seed: int) -> Grid:
    found = {name: changes for name in available_mixers() if (changes := told_apart(name, seed=seed)) is not None}
    rows = []
    for name, changes in found.items():
        confused = [pair.split(",")[0] for pair, change in changes.items() if change < SAME]
        rows.append((name, *changes.values(), ", ".join(confused) or "none"))
    title = "Every mixer with queries and keys: relative change of its heads' output between two queries"
    return Grid(title, ("mixer", *next(iter(found.values())), "confused"), rows)


def _confusion_grid(found: list[Confusion]) -> Grid:
    depth = max(len(each.layers) for each in found)
    layers = [f"share, layer {layer}" for layer in range(depth)]
    rows = [(each.name, each.pairs, each.of, *each.layers) for each in found]
    return Grid("Confused pairs of queries per example, at tolerance 1e-3", ("model", "confused", "pairs", *layers), rows)
