"""Peak memory of training: forward and backward beyond the inputs, at T and 2T and beside PyTorch's attention.

Each in a process of its own. Linear means a ratio of 2 to half the length; the project's own limit is 2.2.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from maclaurin.common.peak_memory import peak_bytes, resident_bytes
from maclaurin.common.records import Record
from maclaurin.processes.children import end_with_parent, lifeline

LENGTHS = (8192, 16384, 32768)
BESIDE_SOFTMAX = 16384
LIMIT = 2.2
HEADS, DIM = 4, 64


@dataclass(frozen=True)
class Peak(Record):
    """extra: bytes beyond the inputs. ratio: to that of half the length, where it was measured."""

    T: int
    extra: int
    ratio: float | None = None


@dataclass(frozen=True)
class Memory(Record):
    """states: bytes of the recurrent state and its gradient. vs_softmax: extra bytes without these, over softmax's."""

    rows: Sequence[Peak]
    softmax: Peak
    states: int
    vs_softmax: float


def run(console: Console, *, long: bool) -> Memory:
    peaks = [_child("power_attention", T) for T in LENGTHS]
    ratios = [None, *(longer.extra / shorter.extra for shorter, longer in itertools.pairwise(peaks))]
    rows = [replace(peak, ratio=ratio) for peak, ratio in zip(peaks, ratios, strict=True)]
    softmax = _child("softmax", BESIDE_SOFTMAX)
    table = Table(title=f"forward + backward, {HEADS} heads of {DIM}: peak memory beyond the inputs")
    for column in ("op", "T", "peak extra", "bytes per token", "ratio to T/2"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row("power_attention", *_cells(row))
    table.add_row("softmax (torch)", *_cells(softmax))
    console.print(table)
    worst = max(row.ratio for row in rows if row.ratio)
    console.print(f"largest ratio {worst:.2f}, limit {LIMIT}: {'holds' if worst <= LIMIT else 'DOES NOT HOLD'}")
    ours = next(row for row in rows if row.T == BESIDE_SOFTMAX)
    states = 2 * HEADS * DIM * (DIM + 1) // 2 * (DIM + 1) * 4
    share = (ours.extra - states) / softmax.extra
    console.print(
        f"T = {BESIDE_SOFTMAX}: {share:.2f} times PyTorch's attention, "
        f"without the recurrent state and its gradient ({states / 2**20:.1f} MiB)"
    )
    return Memory(rows, softmax, states, share)


def _cells(row: Peak) -> tuple[str, str, str, str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return str(row.T), f"{row.extra / 2**20:.0f} MiB", f"{row.extra / row.T:.0f}", ratio


def _child(op: str, T: int) -> Peak:
    command = [sys.executable, "-m", "maclaurin.bench.memory", op, str(T)]
    with lifeline() as stdin:
        answer = subprocess.run(command, stdin=stdin, check=True, capture_output=True, text=True).stdout
    return Peak(T, int(answer))


def _measure(op: str, T: int) -> int:
    """Peak resident memory after the inputs exist and a short call has loaded every library."""
    import torch

    from maclaurin.bench.attention import causal_softmax
    from maclaurin.ops import power_attention

    def inputs(length: int) -> list[torch.Tensor]:
        tensors = [torch.randn(1, length, HEADS, DIM, dtype=torch.float32, device="cpu") for _ in range(3)] + [
            -1e-3 * torch.rand(1, length, HEADS, dtype=torch.float32, device="cpu")
        ]
        return [tensor.requires_grad_() for tensor in tensors]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor) -> None:
        if op == "softmax":
            y = causal_softmax(q, k, v)
        else:
            y = power_attention(q, k, v, log_decay, form="chunked", return_state=False)[0]
        y.sum().backward()

    call(*inputs(600))
    arguments = inputs(T)
    before = resident_bytes()
    call(*arguments)
    return peak_bytes() - before


if __name__ == "__main__":
    end_with_parent()
    print(_measure(sys.argv[1], int(sys.argv[2])))
