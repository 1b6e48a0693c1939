"""Which form is fastest at which length, the cost per token as T grows, and the ratio to PyTorch's causal attention.

The tables justify PARALLEL_UP_TO in maclaurin/ops/power.py and linear.py. Float32, one sequence, 4 heads of 64 channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timing, interleaved
from maclaurin.ops import linear_attention, power_attention

HEADS, DIM = 4, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LONGEST_MATRIX = 2048


def run(console: Console, repeats: int = 5) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for op, name in ((power_attention, "power_attention, order 2"), (linear_attention, "linear_attention, scalar decay")):
        for backward in (False, True):
            table = Table(title=f"{name}, {'forward + backward' if backward else 'forward'}: ms (quartiles)")
            for column in ("T", "softmax (torch)", "parallel", "chunked", "chunked µs/token", "chunked vs softmax"):
                table.add_column(column, justify="right")
            for T in LENGTHS:
                times = _measure(op, T, backward, repeats)
                ratio = times["softmax"].median / times["chunked"].median
                per_token = 1000 * times["chunked"].median / T
                table.add_row(
                    str(T), str(times["softmax"]), str(times.get("parallel", "")), str(times["chunked"]), f"{per_token:.1f}",
                    f"{ratio:.2f}x",
                )  # fmt: skip
                medians = {form: timing.median for form, timing in times.items()}
                rows.append({"op": name, "backward": backward, "T": T, "ms": medians, "vs_softmax": ratio})
            console.print(table)
    return rows


def _measure(op: Any, T: int, backward: bool, repeats: int) -> dict[str, Timing]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, HEADS, DIM, requires_grad=backward) for _ in range(3))
    log_decay = (-F.softplus(torch.randn(1, T, HEADS))).requires_grad_(backward)

    def finish(y: torch.Tensor) -> None:
        if backward:
            y.sum().backward()

    def softmax() -> None:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        finish(F.scaled_dot_product_attention(*heads_first, is_causal=True))

    def ours(form: str) -> None:
        finish(op(q, k, v, log_decay, form=form, return_state=False)[0])

    candidates: dict[str, Any] = {"softmax": softmax, "chunked": lambda: ours("chunked")}
    if T <= LONGEST_MATRIX:
        candidates["parallel"] = lambda: ours("parallel")
    with torch.set_grad_enabled(backward):
        return interleaved(candidates, repeats)
