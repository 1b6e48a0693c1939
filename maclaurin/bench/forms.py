"""Whether `form="auto"` is the fastest form of second order: a line fails where it is 10 % slower than the best one.

Float32, one sequence, two heads, a weak decay as in `attention.py`, with the native kernels of this machine. The lines of
maclaurin/ops/crossover.py come from these times. A form that took more than twice the time of the other at half the length
is not measured again, since the direct sum only falls further behind. A line that would fail is measured once more, longer,
and fails only if most of its times lie apart from those of the best form: a busy machine makes equal ones differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from rich.console import Console
from rich.table import Table

from maclaurin.common.progress import Status
from maclaurin.common.records import Record
from maclaurin.common.timing import Timing, interleaved
from maclaurin.ops import power_attention

HEADS = 2
CHANNELS = (32, 64, 96, 128)
LENGTHS = tuple(2**n for n in range(7, 15))
FORMS = ("auto", "parallel", "chunked")
ALLOWED = 1.1  # of the time of the best form


@dataclass(frozen=True)
class FormRow(Record):
    """ms: by form. slower: the time of "auto" by that of the best form."""

    channels: int
    T: int
    backward: bool
    state: bool
    ms: Mapping[str, float]
    slower: float
    fails: bool


def run(console: Console, *, long: bool, lengths: Sequence[int] | None = None) -> list[FormRow]:
    table = Table(title=f"second order by form, {HEADS} heads: ms")
    for column in ("channels", "T", "what", *FORMS, "auto by the best", ""):
        table.add_column(column, justify="right")
    rows = []
    with Status() as status:
        for row in _rows(sorted(lengths or LENGTHS)):
            rows.append(row)
            table.add_row(*_cells(row))
            if row.fails:  # also said at once: the table comes at the end
                console.print("  ".join(_cells(row)), highlight=False)
            status(f"{row.channels} channels, {_what(row)}: up to {row.T:,} tokens")
    console.print(table)
    console.print(f"{sum(row.fails for row in rows)} of {len(rows)} lines fail")
    return rows


def _what(row: FormRow) -> str:
    return f"forward{' + backward' if row.backward else ''}{', state' if row.state else ''}"


def _cells(row: FormRow) -> list[str]:
    times = (f"{row.ms[form]:.3g}" if form in row.ms else "" for form in FORMS)
    return [str(row.channels), str(row.T), _what(row), *times, f"{row.slower:.2f}", "FAIL" if row.fails else ""]


def _rows(lengths: Sequence[int]) -> Iterator[FormRow]:
    for channels, backward, state in product(CHANNELS, (False, True), (False, True)):
        forms: tuple[str, ...] = FORMS
        for T in lengths:
            candidates = {form: _call(form, channels, T, backward, state) for form in forms}
            with torch.set_grad_enabled(backward):
                row = _row(channels, T, backward, state, interleaved(candidates, seconds=0.5, fewest=0, shuffled=True))
                if row.slower > ALLOWED:
                    row = _row(channels, T, backward, state, interleaved(candidates, seconds=3, fewest=5, shuffled=True))
            yield row
            if row.ms.get("parallel", 0) > 2 * row.ms["chunked"]:
                forms = ("auto", "chunked")


def _row(channels: int, T: int, backward: bool, state: bool, times: Mapping[str, Timing]) -> FormRow:
    best = min(times.values(), key=lambda timing: timing.median)
    slower = times["auto"].median / best.median
    ms = {form: timing.median for form, timing in times.items()}
    return FormRow(channels, T, backward, state, ms, slower, slower > ALLOWED and times["auto"].low > best.high)


def _call(form: str, channels: int, T: int, backward: bool, state: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, T, HEADS, channels, requires_grad=backward, dtype=torch.float32, device="cpu") for _ in range(3)
    )
    log_decay = -1e-4 * torch.rand(1, T, HEADS, dtype=torch.float32, device="cpu")

    def call() -> None:
        y, _ = power_attention(q, k, v, log_decay, form=form, return_state=state, fold_at=1)
        if backward:
            torch.autograd.grad(y.sum(), (q, k, v))

    return call
