"""Bytes of state and time per token against the context, measured and predicted, and where the lines cross.

From which length on is a state no larger than the KV cache of softmax? 2Mamba, d channels per head, H heads that share G
key-value heads, p the bytes of a cached number over those of a summed one:

    state     G·d(d+1)/2 · (d+1) numbers in float32, and the last inputs of the convolution, (H + 2G)·d cached numbers
    softmax   2N·G·d cached numbers
    crossover N ≥ (d+1)²/(4p) + (H/G + 2)/2, and a token more at most: buffered tokens keep a decay each
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.common.timing import Timing, interleaved
from maclaurin.lab import claims
from maclaurin.lab.result import Curve, Grid, Part, Plot, Result
from maclaurin.machine.inventory import load, load_text
from maclaurin.mixers import build_mixer
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.overview import crossover_length
from maclaurin.mixers.registry import available_mixers

PAPER = "2Mamba2Furious, arXiv 2602.17363"
SHOWN = ("softmax", "2mamba", "taylor", "mamba2", "linear", "gla", "sliding-window")  # in plots
STEPS = 32  # in turn: they hold one fold of tokens into the state
NOTES = (
    "Times are of this machine with all that runs beside: medians of turns that all mixers take, with quartiles.",
    "Multiply-adds are predicted from the weights and the state; a mixer that grows copies its keys, which takes "
    "time but multiplies nothing.",
    "2Mamba and Taylor keep tokens until their recurrent state is the smaller of the two, so that they never take more than "
    "softmax by more than the buffer that is not folded yet.",
)


def memory(
    *,
    quick: bool = False,
    seed: int = 0,
    dim: int = 64,
    heads: int = 1,
    contexts: tuple[int, ...] | None = None,
    mixers: tuple[str, ...] | None = None,
    seconds: float | None = None,
) -> Result:
    """Bytes of state and time per token against the context: every mixer, measured and predicted, with the crossovers.

    dim, heads: of each mixer, float32. contexts: lengths at which states are counted and tokens timed.
    mixers: names, all unless given. seconds: of timing per context, all mixers together.
    """
    at_least_one("dim", dim)
    at_least_one("heads", heads)
    contexts = contexts or ((256, 2048, 8192) if quick else (256, 1024, 4096, 16384))
    if min(contexts) < 1 or len(contexts) < 2:
        raise ValueError(f"contexts must be two lengths or more, of at least 1, got {contexts}")
    names = list(mixers or available_mixers())
    seconds = (2.0 if quick else 8.0) if seconds is None else seconds
    found = costs(names, contexts, dim=dim, heads=heads, seed=seed, seconds=seconds)
    crossings = crossovers(dim)
    lengths = {name: crossover_length(build_mixer(name, dim * heads, heads)) for name in names}
    settings = {"dim": dim, "heads": heads, "contexts": sorted(contexts), "seconds": seconds, "dtype": "float32"}
    made = [*byte_claims(found), *crossover_claims(crossings, dim), *cost_claims(found, lengths)]
    part = Part(made, _grids(found, lengths, crossings), _plots(found, lengths, dim, heads))
    title = "Bytes of state and time per token against the context"
    return Result.of("memory", title, settings | {"seed": seed}, [part], NOTES)


class Crossover(NamedTuple):
    dim: int
    heads: int
    kv_heads: int
    dtype: str
    measured: int  # by the mixers' state_nbytes
    predicted: int  # by the formula


def predicted(dim: int, heads: int, kv_heads: int, kept_bytes: int) -> int:
    """By the formula above, for cached numbers of that many bytes beside sums of 4."""
    return math.ceil((dim + 1) ** 2 / 4 * 4 / kept_bytes + (heads / kv_heads + 2) / 2)


def crossover(dim: int, heads: int, kv_heads: int, dtype: torch.dtype) -> Crossover:
    """Of 2Mamba against softmax without positions, both with these heads and in this dtype."""
    shape = (dim * heads, heads)
    square = build_mixer("2mamba", *shape, num_kv_heads=kv_heads).to(dtype)
    softmax = build_mixer("softmax", *shape, num_kv_heads=kv_heads, rotary="none").to(dtype)
    found = crossover_length(square, softmax)
    assert found is not None
    name = str(dtype).removeprefix("torch.")
    return Crossover(dim, heads, kv_heads, name, found, predicted(dim, heads, kv_heads, dtype.itemsize))


def crossovers(dim: int) -> list[Crossover]:
    """Equal precision, a bfloat16 cache beside a float32 state, and grouped heads of both."""
    alone = [(each, 1, 1) for each in sorted({32, 64, 128, dim})]
    grouped = [(dim, 4, kv_heads) for kv_heads in (4, 2, 1)]
    return [crossover(*shape, dtype) for shape in (*alone, *grouped) for dtype in (torch.float32, torch.bfloat16)]


@dataclass(frozen=True)
class Cost:
    """Of one token behind a context. nbytes: of the real tensors. predicted_nbytes: what the mixer says. ms: quartiles."""

    context: int
    nbytes: int
    predicted_nbytes: int
    multiply_adds: int
    ms: Timing


Costs = dict[str, list[Cost]]  # by mixer, at every context


@torch.no_grad()
def states(mixer: Mixer, contexts: Sequence[int], seed: int) -> dict[int, MixerState]:
    """The state behind each context, of one sequence of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, MixerState] = {}
    state: MixerState | None = None
    for before, context in pairwise((0, *sorted(contexts))):
        shape = (1, context - before, mixer.d_model)
        _, state = mixer(torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu"), state)
        assert state is not None
        found[context] = state
    return found


def multiply_adds(mixer: Mixer, state: MixerState) -> int:
    """Of one token more: each weight of a matrix once; a kept number once per query head that reads it; a number of a
    recurrent state once when it is written, and once per query head when it is read.
    """
    grouped = mixer.num_heads // getattr(mixer, "num_kv_heads", mixer.num_heads)
    total = sum(parameter.numel() for parameter in mixer.parameters() if parameter.dim() > 1)
    for name, tensor in state.tensors().items():
        kind = name.rsplit(".", 1)[-1]
        if kind == "recurrent":
            total += (1 + grouped) * tensor.numel()
        elif kind in ("keys", "values") and not name.startswith("conv"):
            total += grouped * tensor.numel()
    return total


@torch.no_grad()
def times(behind: dict[tuple[Mixer, int], MixerState], seconds: float) -> dict[tuple[Mixer, int], Timing]:
    """Milliseconds per token behind each context, all taking turns, each of which starts from the same state."""

    def turn(mixer: Mixer, state: MixerState | None) -> None:
        assert state is not None
        token, state = torch.zeros(1, 1, mixer.d_model, dtype=torch.float32, device="cpu"), state.clone()
        for _ in range(STEPS):
            _, state = mixer(token, state)

    turns: dict[str, Callable[[], object]] = {
        str(index): partial(turn, mixer, start) for index, ((mixer, _), start) in enumerate(behind.items())
    }
    found = interleaved(turns, seconds=seconds, fewest=3, most=15).values()
    return {key: Timing(*(ms / STEPS for ms in astuple(timing))) for key, timing in zip(behind, found, strict=True)}


def costs(names: Sequence[str], contexts: Sequence[int], *, dim: int, heads: int, seed: int, seconds: float) -> Costs:
    """What a token costs behind each context. seconds: of timing per context."""
    torch.manual_seed(seed)
    mixers = {name: build_mixer(name, dim * heads, heads) for name in names}
    behind = {(mixer, n): state for mixer in mixers.values() for n, state in states(mixer, contexts, seed).items()}
    timed = times(behind, seconds * len(contexts))

    def cost(mixer: Mixer, context: int) -> Cost:
        state = behind[mixer, context]
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors().values())
        return Cost(context, nbytes, mixer.state_nbytes(context), multiply_adds(mixer, state), timed[mixer, context])

    return {name: [cost(mixer, context) for context in sorted(contexts)] for name, mixer in mixers.items()}


def byte_claims(found: Costs) -> list[claims.Claim]:
    costs = [(name, cost) for name, row in found.items() for cost in row]
    wrong = [f"{name} at {cost.context}" for name, cost in costs if cost.nbytes != cost.predicted_nbytes]
    text = f"bytes of the real state = state_nbytes, {len(found)} mixers at each context"
    seen = ", ".join(wrong) or f"all {len(costs)} equal"
    return [claims.true("bytes", text, seen, not wrong, "all equal")]


def crossover_claims(found: Sequence[Crossover], dim: int) -> list[claims.Claim]:
    by_key = {(each.dim, each.heads, each.kv_heads, each.dtype): each.measured for each in found}
    narrow, wide = by_key[64, 1, 1, "float32"], by_key[64, 1, 1, "bfloat16"]
    shared, alone = by_key[dim, 4, 1, "float32"], by_key[dim, 1, 1, "float32"]
    apart = max(abs(each.measured - each.predicted) for each in found)
    return [
        claims.near("1058", "2Mamba below softmax from, d = 64, equal precision", narrow, 1058, 0, PAPER),
        claims.near("2116", "the same, float32 state beside a bfloat16 cache", wide, 2116, 2),
        claims.near_relative("grouped", "the same, 4 heads sharing 1 key-value head: both shrink", shared, alone, 0.01),
        claims.at_most("formula", f"crossover − formula, largest of {len(found)} settings", apart, 2),
    ]


def cost_claims(found: Costs, crossings: dict[str, int | None]) -> list[claims.Claim]:
    """From the second longest context to the longest; a state that still keeps its tokens at the first has no part in it."""
    before, last = (cost.context for cost in next(iter(found.values()))[-2:])
    fixed = {name: row for name, row in found.items() if (crossings[name] or before + 1) <= before}
    growing = {name: row for name, row in found.items() if crossings[name] is None}
    factor = last / before
    claimed = []
    if fixed:
        worst = max(row[-1].nbytes / row[-2].nbytes for row in fixed.values())
        ratio = statistics.median(row[-1].ms.median / row[-2].ms.median for row in fixed.values())
        text = f"{len(fixed)} mixers with a fixed state, context times {factor:g}"
        claimed += [
            claims.near("fixed bytes", f"{text}: largest factor of the bytes", worst, 1.0, 0.05),
            claims.at_most("fixed time", f"{text}: median factor of the time per token", ratio, 1.25),
        ]
    if growing:
        least = min(row[-1].nbytes / row[-2].nbytes for row in growing.values())
        text = f"{', '.join(growing)}: smallest factor of the bytes"
        claimed.append(claims.near_relative("growing bytes", text, least, factor, 0.02))
    return claimed


def _grids(found: Costs, lengths: dict[str, int | None], crossings: Sequence[Crossover]) -> list[Grid]:
    contexts = [cost.context for cost in next(iter(found.values()))]
    columns = [f"{kind} {context}" for kind in ("bytes", "ms", "mult-adds") for context in contexts]
    rows = []
    for name, row in found.items():
        ms, counts = (round(cost.ms.median, 4) for cost in row), (cost.multiply_adds for cost in row)
        rows.append((name, lengths[name], *(cost.nbytes for cost in row), *ms, *counts))
    shapes = ("d", "heads", "key-value heads", "KV cache", "measured", "formula")
    title = "2Mamba takes no more than softmax from this length on (sums are float32)"
    return [
        Grid("One token more, by context", ("mixer", "below softmax from", *columns), rows),
        Grid(title, shapes, crossings),
    ]


def _plots(found: Costs, crossings: dict[str, int | None], dim: int, heads: int) -> list[Plot]:
    shown = [name for name in SHOWN if name in found] or list(found)[:7]
    nbytes, times, counts = [], [], []
    for name in shown:
        mixer, crossing, row = build_mixer(name, dim * heads, heads), crossings[name], found[name]
        lengths = sorted({*(2**n for n in range(4, 15)), *([crossing - 1, crossing] if crossing else [])} - {0})
        label = name if crossing is None else f"{name}, from {crossing}"
        nbytes.append(Curve(label, lengths, [mixer.state_nbytes(length) for length in lengths]))
        context = [cost.context for cost in row]
        median, low, high = zip(*(astuple(cost.ms) for cost in row), strict=True)
        times.append(Curve(name, context, median, low, high))
        counts.append(Curve(name, context, [cost.multiply_adds for cost in row]))
    softmax = build_mixer("softmax", dim * heads, heads, rotary="none")
    marks = sorted(length for name in shown if (length := crossings[name]) is not None)
    nbytes.append(Curve("crossovers", marks, [softmax.state_nbytes(length) for length in marks], dashed=True))
    state = "Bytes of state by context; from the length in its name on a state is no larger than that of softmax."
    timed = f"Time of one token more by context, median and quartiles, {load_text(load())}."
    counted = "Multiply-adds of one token more by context, predicted from weights and state."
    return [
        Plot("bytes", state, "tokens", "bytes per sequence", nbytes, log_x=True, log_y=True),
        Plot("times", timed, "tokens before", "ms per token", times, log_x=True, log_y=True),
        Plot("multiply-adds", counted, "tokens before", "multiply-adds per token", counts, log_x=True, log_y=True),
    ]
