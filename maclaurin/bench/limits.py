"""What this process can reach on this machine: the rate of float32 matrix products, and of copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from rich.console import Console

from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved
from maclaurin.ops.products import linear

SIZE = 2048  # of the matrices
PRODUCT = 2 * SIZE**3  # floating-point operations, two per multiply-add
COPIED = 2**28  # bytes: more than any cache


@dataclass(frozen=True)
class Limits(Record):
    gflops: float
    copy_gb_per_s: float


def run(console: Console, *, long: bool) -> Limits:
    found = Limits(matrix_rate() / 1e9, copy_rate() / 1e9)
    console.print(f"float32 matrix product {found.gflops:.0f} GFLOP/s, copy {found.copy_gb_per_s:.1f} GB/s")
    return found


@cache
def matrix_rate() -> float:
    """Floating-point operations per second of the product of two square matrices."""
    times = interleaved({"product": matrix_product()}, seconds=2)
    return PRODUCT / (times["product"].low / 1000)


def matrix_product() -> Callable[[], object]:
    """Of two square matrices, PRODUCT operations, by the faster of PyTorch's libraries."""
    a, b = (torch.randn(SIZE, SIZE, dtype=torch.float32, device="cpu") for _ in range(2))
    return lambda: linear(a, b)


@cache
def copy_rate() -> float:
    """Bytes read and written per second."""
    source = torch.ones(COPIED // 4, dtype=torch.float32, device="cpu")
    target = torch.empty_like(source).zero_()
    times = interleaved({"copy": lambda: target.copy_(source)}, seconds=2)
    return 2 * COPIED / (times["copy"].low / 1000)
