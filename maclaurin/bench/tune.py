"""The crossover between the direct sum over keys and the memory of second order, measured on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from maclaurin.bench.timing import interleaved
from maclaurin.ops import native, power_attention
from maclaurin.ops.crossover import Line

DIMS = (32, 64)
HEADS = 4
SHORTEST = 128
LONGEST = {"torch": 2048, "native": 8192}  # the matrix of the torch backend is held whole


def measure(watch: Callable[[str], None]) -> dict[str, Line]:
    """A line through the crossovers at two head sizes, for each backend that runs here; `watch` hears of each."""
    lines = {}
    for backend in ("torch", "native") if native.available() else ("torch",):
        found = {}
        for dim in DIMS:
            # halfway, on a logarithmic scale, between what is best for inference and for training
            found[dim] = math.sqrt(math.prod(_crossover(backend, dim, backward) for backward in (False, True)))
            watch(f"{backend}, {dim} channels: the direct form is the faster one up to {found[dim]:.0f} tokens")
        lines[backend] = _through(found)
    return lines


def _through(found: dict[int, float]) -> Line:
    (few, first), (many, second) = ((dim * (dim + 1) // 2, tokens) for dim, tokens in found.items())
    slope = max((second - first) / (many - few), 0.0)
    return Line(max(round(first - slope * few), 0), slope)


def _crossover(backend: str, dim: int, backward: bool) -> float:
    """By bisection of the logarithm of the length, to a quarter of an octave."""
    low, high = math.log2(SHORTEST), math.log2(LONGEST[backend])
    while high - low > 1 / 4:
        middle = (low + high) / 2
        if _direct_wins(backend, dim, round(2**middle), backward):
            low = middle
        else:
            high = middle
    return float(2 ** ((low + high) / 2))


def _direct_wins(backend: str, dim: int, T: int, backward: bool) -> bool:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, HEADS, dim, requires_grad=backward) for _ in range(3))
    log_decay = -1e-4 * torch.rand(1, T, HEADS)

    def run(form: str) -> None:
        y, _ = power_attention(q, k, v, log_decay, form=form, backend=backend, return_state=False)
        if backward:
            y.sum().backward()

    times = interleaved({"direct": lambda: run("parallel"), "memory": lambda: run("chunked")}, seconds=0.5, fewest=3)
    return times["direct"].median < times["memory"].median
