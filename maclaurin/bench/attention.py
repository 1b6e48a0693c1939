"""Second and first order against PyTorch's causal attention by length: forward, and forward with backward.

Float32, one sequence, heads of 64 channels. The decay is weak, so that no key is negligible: a stronger one lets the direct
form skip keys, and would flatter it. A prompt is the forward with its state; up to a length, tokens are folded by
whoever looks at it (`PowerState.lazily`). The times of both forms justify the lines in maclaurin/ops/crossover.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from maclaurin.bench.limits import PRODUCT, matrix_product
from maclaurin.common.records import ABSENT, Record
from maclaurin.common.timing import Timing, interleaved
from maclaurin.ops import linear_attention, power_attention
from maclaurin.ops.native.attention import LONGEST_CHUNK

DIM = 64
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
VERY_LONG = 65536
LONGEST_MATRIX = 8192  # up to which the direct form is measured beside the chunked one
OPS = {"second order": power_attention, "first order": linear_attention}


@dataclass(frozen=True)
class OpTime(Record):
    """Milliseconds with `form="auto"`, speedup over softmax, and milliseconds by form."""

    ms: float
    quartiles: tuple[float, float]
    ratio: float
    forms: Mapping[str, float]


@dataclass(frozen=True)
class AttentionRow(Record):
    """share: of the rate of a matrix product in the same run, in the chunked form of second order."""

    heads: int
    T: int
    backward: bool
    softmax_ms: float
    second_order: OpTime = field(metadata={"key": "second order"})
    first_order: OpTime = field(metadata={"key": "first order"})
    share: float
    prompt: OpTime | None = field(default=None, metadata=ABSENT)


def run(console: Console, *, long: bool, lengths: Sequence[int] | None = None) -> list[AttentionRow]:
    rows = []
    for heads in (4, 16):
        usual = LENGTHS if heads == 16 and not long else (*LENGTHS, VERY_LONG)
        for backward in (False, True):
            table = Table(title=f"{heads} heads, {'forward + backward' if backward else 'forward'}: ms (quartiles)")
            for column in ("T", "softmax", *(f"{name}, {what}" for name in OPS for what in ("ms", "ratio"))):
                table.add_column(column, justify="right")
            table.add_column("second order, share of matrix rate", justify="right")
            if not backward:
                table.add_column("prompt, ratio", justify="right")
            for T in lengths or usual:
                row = _row(heads, T, backward)
                rows.append(row)
                ops = (row.second_order, row.first_order)
                cells = [text for op in ops for text in (f"{op.ms:.3g}", f"{op.ratio:.2f}x")]
                prompt = () if row.prompt is None else (f"{row.prompt.ratio:.2f}x",)
                table.add_row(str(T), f"{row.softmax_ms:.3g}", *cells, f"{100 * row.share:.0f} %", *prompt)
            console.print(table)
    return rows


def _row(heads: int, T: int, backward: bool) -> AttentionRow:
    times = _measure(heads, T, backward)
    softmax = times["softmax"].median
    second, first = (_op_time(name, times, softmax) for name in OPS)
    prompt = None if backward else _op_time("prompt", times, softmax)
    share = useful_operations(heads, T, backward) / PRODUCT * times["product"].median / second.forms["chunked"]
    return AttentionRow(heads, T, backward, softmax, second, first, share, prompt)


def _op_time(name: str, times: dict[str, Timing], softmax: float) -> OpTime:
    forms = {form: times[f"{name} {form}"].median for form in ("auto", "parallel", "chunked") if f"{name} {form}" in times}
    spread = times[f"{name} auto"]
    return OpTime(forms["auto"], (spread.low, spread.high), softmax / forms["auto"], forms)


def useful_operations(heads: int, T: int, backward: bool) -> float:
    """Of the chunked form: into and out of a state of d(d+1)/2 rows and d+1 columns, and the pairs inside a chunk.

    The forward has one product of each kind per token; the backward adds 5 for every 2.
    """
    state = 2 * DIM * (DIM + 1) / 2 * (DIM + 1)
    pairs = (LONGEST_CHUNK + 1) / 2 * (2 * DIM + 1)
    return 2 * heads * T * (state + pairs) * (3.5 if backward else 1)


def causal_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's own attention, for tensors (batch, time, heads, channels)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _measure(heads: int, T: int, backward: bool) -> dict[str, Timing]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, heads, DIM, requires_grad=backward, dtype=torch.float32, device="cpu") for _ in range(3))
    log_decay = (-1e-4 * torch.rand(1, T, heads, dtype=torch.float32, device="cpu")).requires_grad_(backward)
    dy = torch.randn(1, T, heads, DIM, dtype=torch.float32, device="cpu")

    def finish(y: torch.Tensor) -> None:
        if backward:
            torch.autograd.grad(y, (q, k, v), dy)

    def softmax() -> None:
        finish(causal_softmax(q, k, v))

    def ours(op: Any, form: str) -> Any:
        return lambda: finish(op(q, k, v, log_decay, form=form, return_state=False)[0])

    forms = ("auto", "chunked", "parallel") if T <= LONGEST_MATRIX else ("auto", "chunked")
    candidates = {f"{name} {form}": ours(op, form) for name, op in OPS.items() for form in forms}
    if not backward:
        candidates["prompt auto"] = lambda: power_attention(q, k, v, log_decay)
    candidates |= {"softmax": softmax, "product": matrix_product()}
    with torch.set_grad_enabled(backward):
        return interleaved(candidates, seconds=6, fewest=0 if T == VERY_LONG else 3, shuffled=True)
