"""The crossovers between the direct sum over keys and the recurrent states it competes with, measured on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.common.timing import interleaved, on_gpu
from maclaurin.ops import bidirectional_linear, gpu, native, power_attention
from maclaurin.ops.crossover import Line, name_here, side
from maclaurin.ops.features import monomial_count

HEADS = {"cpu": 4, "cuda": 16}
TOKENS = {"cpu": 512, "cuda": 16384}  # of a batch at least: a short call is overhead, and does not fill a GPU
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}  # in which models are trained there
LONGEST = {"torch": 2048, "native": 8192}  # the matrix of the torch backend is held whole

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, str], Tensor]  # q, k, v, log_decay and the form


class _Race(NamedTuple):
    """What the direct sum competes with, by its name in `ops/crossover.py`."""

    name: str
    shapes: tuple[tuple[int, int], tuple[int, int]]  # key and value channels
    features: Callable[[int, int], float]  # of such channels
    shortest: int  # the crossover is looked for between these lengths
    longest: int
    attend: Attend
    device: str = "cpu"


def measure(watch: Callable[[str], None]) -> dict[str, Line]:
    """A line through the crossovers at two head sizes, per kind of state that runs here; `watch` is called with each."""
    lines = {}
    for race in _races():
        found = {}
        for K, V in race.shapes:
            # halfway, on a logarithmic scale, between what is best for inference and for training
            tokens = math.sqrt(math.prod(_crossover(race, K, V, backward) for backward in (False, True)))
            watch(f"{race.name}, {K} key and {V} value channels: the direct form is faster up to {tokens:.0f} tokens")
            found[race.features(K, V)] = tokens
        lines[name_here(race.name)] = Line.through(found)
    return lines


def _races() -> Iterator[_Race]:
    for backend in ("torch", "native") if native.available() else ("torch",):
        attend = _second_order(backend)
        yield _Race(backend, ((32, 32), (64, 64)), lambda K, _: monomial_count(K, 2), 128, LONGEST[backend], attend)
    if torch.cuda.is_available() and gpu.has_triton():
        shapes = ((32, 32), (64, 64))
        yield _Race("triton", shapes, lambda K, _: monomial_count(K, 2), 512, 32768, _second_order("triton"), "cuda")
    decayed = "native decay" if native.available() else "torch decay"
    for name in ("one state", decayed):
        yield _Race(name, ((32, 32), (128, 128)), side, 8, 1024, _first_order(name == decayed))


def _second_order(backend: str) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, form: str) -> Tensor:
        return power_attention(q, k, v, log_decay, form=form, backend=backend, return_state=False)[0]

    return attend


def _first_order(decayed: bool) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, form: str) -> Tensor:
        return bidirectional_linear(q.abs(), k.abs(), v, log_decay if decayed else None, scale=1.0, form=form)

    return attend


def _crossover(race: _Race, K: int, V: int, backward: bool) -> float:
    """By bisection of the logarithm of the length, to a quarter of an octave."""
    low, high = math.log2(race.shortest), math.log2(race.longest)
    while high - low > 1 / 4:
        middle = (low + high) / 2
        if _direct_wins(race, K, V, round(2**middle), backward):
            low = middle
        else:
            high = middle
    return float(2 ** ((low + high) / 2))


def _direct_wins(race: _Race, K: int, V: int, T: int, backward: bool) -> bool:
    torch.manual_seed(0)
    device = race.device
    B, H = max(1, TOKENS[device] // T), HEADS[device]
    q, k, v = (torch.randn(B, T, H, size, requires_grad=backward, dtype=DTYPES[device], device=device) for size in (K, K, V))
    log_decay = -1e-4 * torch.rand(B, T, H, dtype=torch.float32, device=device)

    def run(form: str) -> None:
        y = race.attend(q, k, v, log_decay, form)
        if backward:
            y.sum().backward()

    if race.device == "cuda":
        return on_gpu(lambda: run("parallel")).median < on_gpu(lambda: run("chunked")).median
    times = interleaved({"direct": lambda: run("parallel"), "state": lambda: run("chunked")}, seconds=0.5, fewest=3)
    return times["direct"].median < times["state"].median
