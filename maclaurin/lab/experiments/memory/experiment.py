"""`maclaurin lab memory`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.memory.crossover import Crossover, crossover, measured
from maclaurin.lab.experiments.memory.decoding import Cost, costs
from maclaurin.lab.result import Curve, Grid, Plot, Result
from maclaurin.mixers import build_mixer
from maclaurin.mixers.registry import available_mixers

PAPER = "2Mamba2Furious, arXiv 2602.17363"
SHOWN = ("softmax", "2mamba", "taylor", "mamba2", "linear", "gla", "sliding-window")  # in plots


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
    """Bytes of state and time a token against the context: every mixer, measured and predicted, with the crossovers.

    dim, heads: of each mixer, float32. contexts: lengths at which states are counted and tokens timed.
    mixers: names, all unless given. seconds: of timing a context, all mixers together.
    """
    at_least_one("dim", dim)
    at_least_one("heads", heads)
    contexts = contexts or ((256, 2048, 8192) if quick else (256, 1024, 4096, 16384))
    if min(contexts) < 1 or len(contexts) < 2:
        raise ValueError(f"contexts must be two lengths or more, of at least 1, got {contexts}")
    names = list(mixers or available_mixers())
    if seconds is None:
        seconds = 2.0 if quick else 8.0
    found = costs(names, contexts, dim=dim, heads=heads, seed=seed, seconds=seconds)
    crossings = crossovers(dim)
    lengths = {name: _crossing(name, dim, heads) for name in names}
    return Result(
        "memory",
        "Bytes of state and time a token against the context",
        {
            "dim": dim,
            "heads": heads,
            "contexts": sorted(contexts),
            "seconds": seconds,
            "dtype": "float32",
            "seed": seed,
        },
        [*byte_claims(found), *crossover_claims(crossings, dim), *cost_claims(found, lengths)],
        [_costs(found, lengths), _crossings(crossings)],
        [_bytes(found, lengths, dim, heads), _times(found), _multiply_adds(found)],
        [
            "Times are of this machine with all that runs beside: medians of turns that all mixers take, with quartiles.",
            "Multiply-adds are predicted from the weights and the state; a mixer that grows copies its keys, which takes "
            "time but multiplies nothing.",
            "2Mamba and Taylor keep tokens until their memory is the smaller of the two, so that they never take more than "
            "softmax by more than what waits to be folded.",
        ],
    )


def crossovers(dim: int) -> list[Crossover]:
    """2Mamba against softmax: equal precision, a bfloat16 cache beside a float32 state, and grouped heads of both."""
    heads = ((1, 1), (4, 4), (4, 2), (4, 1))
    dims = sorted({32, 64, 128, dim})
    alone = [crossover(each, 1, 1, dtype) for each in dims for dtype in (torch.float32, torch.bfloat16)]
    return [*alone, *(crossover(dim, H, G, dtype) for H, G in heads[1:] for dtype in (torch.float32, torch.bfloat16))]


def byte_claims(found: dict[str, list[Cost]]) -> list[Claim]:
    wrong = [
        f"{name} at {cost.context}" for name, row in found.items() for cost in row if cost.nbytes != cost.predicted_nbytes
    ]
    cells = sum(map(len, found.values()))
    text = f"bytes of the real state = state_nbytes, {len(found)} mixers at each context"
    return [claims.true("bytes", text, ", ".join(wrong) or f"all {cells} equal", not wrong, "all equal")]


def crossover_claims(found: Sequence[Crossover], dim: int) -> list[Claim]:
    by_key = {(each.dim, each.heads, each.kv_heads, each.dtype): each.measured for each in found}
    apart = max(abs(each.measured - each.predicted) for each in found)
    return [
        claims.near(
            "1058", "2Mamba below softmax from, d = 64, equal precision", by_key[64, 1, 1, "float32"], 1058, 0, PAPER
        ),
        claims.near("2116", "the same, float32 state beside a bfloat16 cache", by_key[64, 1, 1, "bfloat16"], 2116, 2),
        claims.near_relative(
            "grouped",
            "the same, 4 heads sharing 1 key-value head: both shrink",
            by_key[dim, 4, 1, "float32"],
            by_key[dim, 1, 1, "float32"],
            0.01,
        ),
        claims.at_most("formula", f"crossover − formula, largest of {len(found)} settings", apart, 2),
    ]


def cost_claims(found: dict[str, list[Cost]], crossings: dict[str, int | None]) -> list[Claim]:
    """From the second longest context to the longest; a state that still keeps its tokens at the first has no part in it."""
    before = next(iter(found.values()))[-2].context
    fixed = {name: row for name, row in found.items() if (crossings[name] or before + 1) <= before}
    growing = {name: row for name, row in found.items() if crossings[name] is None}
    factor = next(iter(found.values()))[-1].context / next(iter(found.values()))[-2].context
    claimed = []
    if fixed:
        worst = max(row[-1].nbytes / row[-2].nbytes for row in fixed.values())
        ratio = statistics.median(row[-1].ms.median / row[-2].ms.median for row in fixed.values())
        text = f"{len(fixed)} mixers with a fixed state, context times {factor:g}"
        claimed += [
            claims.near("fixed bytes", f"{text}: largest factor of the bytes", worst, 1.0, 0.05),
            claims.at_most("fixed time", f"{text}: median factor of the time a token", ratio, 1.25),
        ]
    if growing:
        least = min(row[-1].nbytes / row[-2].nbytes for row in growing.values())
        text = f"{', '.join(growing)}: smallest factor of the bytes"
        claimed.append(claims.near_relative("growing bytes", text, least, factor, 0.02))
    return claimed


def _crossing(name: str, dim: int, heads: int) -> int | None:
    mixer = build_mixer(name, dim * heads, heads)
    softmax = build_mixer("softmax", dim * heads, heads, rotary="none")
    return measured(mixer, softmax) if mixer.finite_state else None


def _costs(found: dict[str, list[Cost]], crossings: dict[str, int | None]) -> Grid:
    contexts = [cost.context for cost in next(iter(found.values()))]
    columns = [f"{kind} {context}" for kind in ("bytes", "ms", "mult-adds") for context in contexts]
    rows: list[tuple[str | float | None, ...]] = [
        (
            name,
            crossings[name],
            *(cost.nbytes for cost in row),
            *(round(cost.ms.median, 4) for cost in row),
            *(cost.multiply_adds for cost in row),
        )
        for name, row in found.items()
    ]
    return Grid("One token more, by context", ("mixer", "below softmax from", *columns), rows)


def _crossings(found: Sequence[Crossover]) -> Grid:
    rows = [(each.dim, each.heads, each.kv_heads, each.dtype, each.measured, each.predicted) for each in found]
    columns = ("d", "heads", "key-value heads", "kept numbers", "measured", "formula")
    return Grid("2Mamba takes no more than softmax from this length on (sums are float32)", columns, rows)


def _shown(found: dict[str, list[Cost]]) -> list[str]:
    return [name for name in SHOWN if name in found] or list(found)[:7]


def _bytes(found: dict[str, list[Cost]], crossings: dict[str, int | None], dim: int, heads: int) -> Plot:
    lengths = [2**n for n in range(4, 15)]
    curves = []
    for name in _shown(found):
        mixer = build_mixer(name, dim * heads, heads)
        crossing = crossings[name]
        inside = sorted({*lengths, *([crossing - 1, crossing] if crossing else [])} - {0})
        label = name if crossing is None else f"{name}, from {crossing}"
        curves.append(Curve(label, inside, [mixer.state_nbytes(length) for length in inside]))
    softmax = build_mixer("softmax", dim * heads, heads, rotary="none")
    marks = sorted(length for name in _shown(found) if (length := crossings[name]) is not None)
    curves.append(Curve("crossovers", marks, [softmax.state_nbytes(length) for length in marks], dashed=True))
    caption = "Bytes of state by context; from the length in its name on a state is no larger than that of softmax."
    return Plot("bytes", caption, "tokens", "bytes a sequence", curves, log_x=True, log_y=True)


def _times(found: dict[str, list[Cost]]) -> Plot:
    curves = []
    for name in _shown(found):
        row = found[name]
        middle, low, high = ([getattr(cost.ms, part) for cost in row] for part in ("median", "low", "high"))
        curves.append(Curve(name, [cost.context for cost in row], middle, low, high))
    caption = "Time of one token more by context, median and quartiles."
    return Plot("times", caption, "tokens before", "ms a token", curves, log_x=True, log_y=True)


def _multiply_adds(found: dict[str, list[Cost]]) -> Plot:
    curves = [
        Curve(name, [cost.context for cost in found[name]], [cost.multiply_adds for cost in found[name]])
        for name in _shown(found)
    ]
    caption = "Multiply-adds of one token more by context, predicted from weights and state."
    return Plot("multiply-adds", caption, "tokens before", "multiply-adds a token", curves, log_x=True, log_y=True)
