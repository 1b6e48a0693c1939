"""On a GPU, between CUDA events: second and first order beside FlashAttention and what else is installed, by length.

bfloat16, one sequence, 16 heads of 64 channels, a weak decay. Peers compute related things, not the same: fla and mamba-ssm
first order, retention second order.
"""

# B batch, T time, H heads, D channels

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from maclaurin.bench.attention import causal_softmax
from maclaurin.common.records import Record
from maclaurin.common.timing import Timing, on_gpu
from maclaurin.ops import linear_attention, power_attention

HEADS, DIM = 16, 64
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
VERY_LONG = 131072
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v (B,T,H,D) and log decay (B,T,H)
MAY_FAIL = (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError)


class Contender(NamedTuple):
    attend: Attend
    ours: bool = False


@dataclass(frozen=True)
class GpuRow(Record):
    """ms: medians by contender; None for a peer that could not run. device: the name of the GPU."""

    device: str
    T: int
    backward: bool
    ms: Mapping[str, float | None]


def run(console: Console, *, long: bool) -> list[GpuRow]:
    if not torch.cuda.is_available():
        raise ValueError("the part gpu needs a CUDA or ROCm GPU that PyTorch sees, and there is none")
    device = torch.device("cuda")
    found = contenders()
    rows = []
    for backward in (False, True):
        table = Table(title=f"{'forward + backward' if backward else 'forward'}, {HEADS} heads of {DIM}, bfloat16: ms")
        for column in ("T", *found):
            table.add_column(column, justify="right")
        for T in (*LENGTHS, VERY_LONG) if long else LENGTHS:
            row = measure(found, T, backward, device, on_gpu)
            rows.append(row)
            table.add_row(f"{T:,}", *("fails" if ms is None else f"{ms:.3g}" for ms in row.ms.values()))
        console.print(table)
    return rows


def measure(
    candidates: Mapping[str, Contender], T: int, backward: bool, device: torch.device, timer: Callable[..., Timing]
) -> GpuRow:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, HEADS, DIM, dtype=torch.bfloat16, device=device, requires_grad=backward) for _ in range(3))
    log_decay = -1e-4 * torch.rand(1, T, HEADS, dtype=torch.float32, device=device)
    dy = torch.randn_like(q)

    def once(attend: Attend) -> None:
        with torch.set_grad_enabled(backward):
            y = attend(q, k, v, log_decay)
        if backward:
            torch.autograd.grad(y, (q, k, v), dy)

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ms = {what: _median(timer, partial(once, one.attend), one.ours) for what, one in candidates.items()}
    return GpuRow(name, T, backward, ms)


def _median(timer: Callable[..., Timing], run: Callable[[], None], ours: bool) -> float | None:
    """None where a peer does not take these shapes or this GPU: the others are still worth measuring. Ours must run."""
    try:
        return timer(run).median
    except MAY_FAIL:
        if ours:
            raise
        return None


def contenders() -> dict[str, Contender]:
    """Ours, PyTorch's, and those that are installed."""
    ours = {
        "second order": partial(_ours, power_attention, "auto"),
        "second order, direct": partial(_ours, power_attention, "parallel"),
        "second order, chunked": partial(_ours, power_attention, "chunked"),
        "first order": partial(_ours, linear_attention, "auto"),
    }
    theirs = {"SDPA": _sdpa, "FlashAttention": _flash} | dict(_peers())
    return {name: Contender(attend, ours=True) for name, attend in ours.items()} | {
        name: Contender(attend) for name, attend in theirs.items()
    }


def _peers() -> Iterator[tuple[str, Attend]]:
    for name, package, attend in (
        ("fla", "fla", _fla),
        ("retention", "retention", _retention),
        ("mamba-ssm", "mamba_ssm", _ssd),
    ):
        if find_spec(package) is not None:
            yield name, attend


def _ours(op: Callable[..., tuple[Tensor, object]], form: str, q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    return op(q, k, v, a, form=form, return_state=False)[0]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    return causal_softmax(q, k, v)


def _flash(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return causal_softmax(q, k, v)


def _fla(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    from fla.ops.simple_gla import chunk_simple_gla

    y: Tensor = chunk_simple_gla(q, k, v, a)[0]
    return y


def _retention(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    from retention import power_retention

    y: Tensor = power_retention(q, k, v, log_G=a, deg=2, chunk_size=1024)
    return y


def _ssd(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    rate = torch.full((HEADS,), -1.0, dtype=torch.float32, device=q.device)
    y: Tensor = mamba_chunk_scan_combined(v, -a, rate, k, q, chunk_size=256)
    return y
