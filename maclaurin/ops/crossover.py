"""Up to how many queries the direct sum over all keys beats a state, by the kind of state: measured, in this one place.

`maclaurin doctor --tune` measures it again for the machine it runs on and stores what it found beside the cached tokens.
"""

from __future__ import annotations

import math
import os
import platform
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from maclaurin.common.files import read_json, write_json

MOST = 10**9  # tokens, and tokens per feature


@dataclass(frozen=True)
class Line:
    """Tokens: start + per_feature · features."""

    start: int
    per_feature: float

    @staticmethod
    def through(tokens: dict[float, float]) -> Line:
        """From two numbers of features to the tokens of their crossovers."""
        (few, first), (many, second) = tokens.items()
        slope = max((second - first) / (many - few), 0.0)
        return Line(max(round(first - slope * few), 0), slope)


# Second order: "torch", and "native" by instruction set. `maclaurin bench forms` prints the times of both forms that these
# come from. The native start is two chunks, because a chunk meets its own keys directly in any case; its slope is that of
# the multiplications, 2 features (V+1) against T·V. AVX2 lies between a machine with nothing better, where heads of 64
# channels cross at about 8000 tokens, and AVX2 on one that has AVX-512 (4200). NEON has not been measured.
# Those of a GPU, which has a name of its own, are a model until `--tune` has run on it (`gpu/work.py`).
# First order over whole sequences, where `side` counts the features: one state of all tokens, or a pass in either direction
# where there is a decay, which crosses earlier with AVX-512. `maclaurin doctor --tune` prints such crossovers.
DIRECT_QUERIES = {
    "torch": Line(0, 0.25),
    "native, avx512": Line(256, 1.8),
    "native, avx2": Line(256, 2.6),
    "native, neon": Line(256, 1.8),
    "native, portable": Line(256, 1.8),
    "one state": Line(-6, 0.78),
    "native decay, avx512": Line(6, 1.0),
    "native decay, avx2": Line(6, 1.8),
    "native decay, neon": Line(6, 1.8),
    "native decay, portable": Line(6, 1.8),
    "torch decay": Line(100, 3.5),
}


def longest_direct(
    rival: str, features: float, *, folds: bool = False, gradients: bool = False, tasks: int | None = None
) -> int:
    """The largest number of queries for which the direct sum beats a state of so many features.

    folds: the state is wanted beside the outputs. Chunks have written it, after the direct sum it is still to be written:
    what the direct sum competes with are only the reads, half of the work. gradients: a backward follows, whose products
    are 5 beside the 2 of the forward, a fold is one: 6/7 of the length. With a gradient through the state a fold would be
    three and this 4/7, but most callers hand a state on without one.
    tasks: into how many the work through the state falls. Of more threads, only the direct sum has work for all.
    """
    name = name_here(rival)
    line = _tuned().get(name) or (_modelled(name) if rival == "triton" else DIRECT_QUERIES[name])
    idle = 1.0 if tasks is None else max(1.0, torch.get_num_threads() / max(1, tasks))
    competes = 1.0 if not folds else 6 / 7 if gradients else 0.5
    return line.start + int(line.per_feature * features * competes * idle)


def name_here(rival: str) -> str:
    """The kernels of a CPU are measured by its instruction set, whichever is in use: on one machine, all cross at about the
    same length. Those of a GPU are measured by its name."""
    if rival in ("native", "native decay"):
        return f"{rival}, {_instructions()}"
    return _on_this_gpu() if rival == "triton" else rival


def _instructions() -> str:
    from maclaurin.ops.native import library  # whose package imports this

    isa = library.fastest_isa() if library.available() else "portable"
    return "neon" if isa == "portable" and platform.machine() in ("aarch64", "arm64") else isa


@cache
def _modelled(gpu: str) -> Line:
    from maclaurin.ops.features import monomial_count
    from maclaurin.ops.gpu import peaks, work  # whose package is imported with the ops

    peak = peaks.peak_of(gpu)
    return Line.through({float(monomial_count(D, 2)): float(work.longest_direct(peak, D)) for D in (32, 64)})


@cache
def _on_this_gpu() -> str:
    return f"triton, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "triton"


def side(key_channels: int, value_channels: int) -> float:
    """Of a square with as many numbers as a state of first order: it is written and read whole, as the T x T matrix is."""
    return math.sqrt(key_channels * value_channels)


def tuned_file() -> Path:
    return Path(os.environ.get("MACLAURIN_CACHE") or Path.home() / ".cache" / "maclaurin") / "crossover.json"


def store(lines: dict[str, Line]) -> None:
    """What `longest_direct` uses from now on, here and in later processes. What other GPUs and CPUs had stored stays."""
    write_json(tuned_file(), {rival: [line.start, line.per_feature] for rival, line in (_tuned() | lines).items()})
    _tuned.cache_clear()


@cache
def _tuned() -> dict[str, Line]:
    path = tuned_file()
    if not path.exists():
        return {}
    try:
        return {rival: _checked(rival, line) for rival, line in read_json(path).items()}
    except (OSError, ValueError) as error:
        warnings.warn(f"{path} is ignored, what it should hold is built in: {error}", stacklevel=2)
        return {}


def _checked(rival: str, line: Any) -> Line:
    numbers = isinstance(line, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in line)
    if not numbers or len(line) != 2 or not all(abs(x) <= MOST for x in line):
        raise ValueError(f"{rival!r} must be two numbers between -{MOST} and {MOST}")
    return Line(int(line[0]), float(line[1]))
