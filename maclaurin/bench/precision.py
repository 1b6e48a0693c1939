"""Low precision on a CPU: every op that has kernels, forward and backward, with bfloat16 and float16 inputs.

Kernels compute in float32 and tensors are converted at their boundary, so a call may cost as much more as its conversions
take. Errors are distances from float64 on the same rounded inputs, of outputs and gradients together, each beside that of
the torch backend: what plain PyTorch loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved
from maclaurin.machine.kernels import CASES, Case, Sizes, Tensors
from maclaurin.ops.backends import watching

SIZE = Sizes(B=1, T=512, G=4, R=1, K=64, V=64, chunk=64, fold=(1024, 32))
DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class PrecisionRow(Record):
    """backend: what "auto" runs. ratio: time to that of float32. error, of_torch: relative, of outputs and gradients."""

    op: str
    what: str
    dtype: str
    backend: str
    ratio: float
    error: float
    of_torch: float


def run(console: Console, *, long: bool) -> list[PrecisionRow]:
    title = f"low precision, {SIZE.T} tokens of {SIZE.G} heads of {SIZE.K}, forward and backward"
    table = Table(title=title)
    for column in ("op", "call", "inputs", "runs in", "time / float32", "error", "torch's error"):
        table.add_column(column, justify="right")
    rows = []
    for case in track(CASES, description="precision", console=console, transient=True):
        for row in _measure(case, SIZE):
            rows.append(row)
            error, of_torch = (f"{x:.1e}" for x in (row.error, row.of_torch))
            table.add_row(row.op, row.what, row.dtype, row.backend, f"{row.ratio:.2f}", error, of_torch)
    console.print(table)
    return rows


def _measure(case: Case, size: Sizes) -> list[PrecisionRow]:
    drawn = case.draw(size)
    runs = {str(dtype): partial(_call, case, drawn, size, "auto", dtype) for dtype in (torch.float32, *DTYPES)}
    times = interleaved(runs, seconds=1)
    rows = []
    for dtype in DTYPES:
        rounded = {name: x.to(dtype) for name, x in drawn.items()}
        exact = _call(case, rounded, size, "torch", torch.float64)
        with watching() as choices:
            found = runs[str(dtype)]()
        backend = ", ".join(sorted({choice.backend for choice in choices}))
        errors = (_distance(y, exact) for y in (found, _call(case, drawn, size, "torch", dtype)))
        name = str(dtype).removeprefix("torch.")
        ratio = times[str(dtype)].median / times[str(torch.float32)].median
        rows.append(PrecisionRow(case.op, case.what, name, backend, ratio, *errors))
    return rows


def _call(case: Case, drawn: Tensors, size: Sizes, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    inputs = {name: x.to(dtype).requires_grad_() for name, x in drawn.items()}
    y, _ = case.call(inputs, None, size, "chunked", backend)
    weight = torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype, device=y.device)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), list(inputs.values()))]


def _distance(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest of the relative distances."""
    return max(
        float((x.double() - right).norm() / right.norm().clamp(min=1e-30)) for x, right in zip(found, exact, strict=True)
    )
