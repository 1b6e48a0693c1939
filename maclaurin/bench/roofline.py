"""What second order can gain over FlashAttention on a GPU: a model, not a measurement, and it runs anywhere.

Time per token and head is the larger of products over a share of the peak and of bytes over 80 % of the bandwidth. The
share that a kernel reaches is an assumption; FlashAttention's rates at heads of 64 are published ones (FlashAttention-3,
arXiv 2407.08608, for the H100; 50 to 55 % of the peak, as FlashAttention-2 reaches, for the A100).
"""

# D channels of keys and values per head, F features as the kernels hold them, C chunk, T tokens

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from maclaurin.common.records import Record
from maclaurin.machine.gpus import PEAKS

D, C = 64, 512
F = 10 * 256  # pairs of blocks of 16 channels
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
OF_BANDWIDTH = 0.8


class Share(NamedTuple):
    """Of the peak, that our kernels reach."""

    forward: float
    backward: float

    def __str__(self) -> str:
        return f"{100 * self.forward:.0f} / {100 * self.backward:.0f} %"


SHARES = {"A100": (Share(0.35, 0.30), Share(0.45, 0.40)), "H100": (Share(0.45, 0.40), Share(0.60, 0.55))}
# TFLOP/s of FlashAttention, forward and backward, by length; beyond the last as there
FLASH = {
    "A100": ({2048: 160.0, 4096: 168.0, 8192: 172.0}, {2048: 140.0, 4096: 150.0, 8192: 156.0}),
    "H100": ({2048: 371.0, 4096: 420.0, 8192: 460.0, 16384: 473.0}, {2048: 422.0, 4096: 453.0, 8192: 472.0}),
}


class Work(NamedTuple):
    """Per token and head."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class RooflineRow(Record):
    """Nanoseconds per token and head, forward and backward together."""

    gpu: str
    share: str
    T: int
    flash_ns: float
    chunked_ns: float
    direct_ns: float

    @property
    def ratio(self) -> float:
        """How many times as long FlashAttention takes as the faster of our forms."""
        return self.flash_ns / min(self.chunked_ns, self.direct_ns)


def _pairs(T: float, products: int) -> float:
    """FLOPs of so many products over the keys before a token, with half a tile of 128 that the mask wastes."""
    return products * 2 * D * (T / 2 + 64)


def chunked() -> tuple[Work, Work]:
    """Forward and backward through states in bfloat16, which the backward computes again."""
    states = F * D * 2 / C
    forward = Work(2 * 2 * F * D + _pairs(C, 2) + 4 * D * D, 6 * D * 2 + 2 * states + 12)
    backward = Work(2 * D * (3 * F + 2 * D * D) + _pairs(C, 7) + 8 * D * D, 40 * D + 5 * states + 40)
    return forward, backward


def direct(T: int) -> tuple[Work, Work]:
    return Work(_pairs(T, 2), 4 * D * 2), Work(_pairs(T, 7), 24 * D)


def nanoseconds(gpu: str, works: tuple[Work, Work], share: Share) -> float:
    peak = PEAKS[gpu]
    return sum(
        1e-3 * max(work.flops / (part * peak.tflops), work.bytes / (OF_BANDWIDTH * peak.bandwidth))
        for work, part in zip(works, share, strict=True)
    )


def flash_nanoseconds(gpu: str, T: int) -> float:
    """Half of all pairs: two products forward, five backward."""
    return sum(1e-3 * products * D * T / _rate(rates, T) for products, rates in zip((2, 5), FLASH[gpu], strict=True))


def _rate(rates: dict[int, float], T: int) -> float:
    lengths = sorted(rates)
    before = max((length for length in lengths if length <= T), default=lengths[0])
    after = min((length for length in lengths if length > T), default=before)
    if T < before or after == before:
        return rates[before]
    return rates[before] + (rates[after] - rates[before]) * (T - before) / (after - before)


def crossover(gpu: str, share: Share) -> int:
    """From which length on the states take less time than FlashAttention."""
    ours = nanoseconds(gpu, chunked(), share)
    return next(T for T in range(256, 2**20, 64) if flash_nanoseconds(gpu, T) > ours)


def run(console: Console, *, long: bool) -> list[RooflineRow]:
    rows = [
        RooflineRow(
            gpu,
            str(share),
            T,
            flash_nanoseconds(gpu, T),
            nanoseconds(gpu, chunked(), share),
            nanoseconds(gpu, direct(T), share),
        )
        for gpu, shares in SHARES.items()
        for share in shares
        for T in LENGTHS
    ]
    table = Table(title=f"modelled, heads of {D}, bfloat16: FlashAttention's time over ours, forward and backward")
    for column in ("GPU, share of the peak", *(f"{T // 1024}k" for T in LENGTHS), "equal at"):
        table.add_column(column, justify="right")
    for gpu, shares in SHARES.items():
        for share in shares:
            own = [row for row in rows if (row.gpu, row.share) == (gpu, str(share))]
            ratios = (f"{row.ratio:.2f}" for row in own)
            table.add_row(f"{gpu}, {share}", *ratios, f"{crossover(gpu, share) / 1000:.1f}k tokens")
    console.print(table)
    return rows
