"""What second order can gain over FlashAttention on a GPU: a model, not a measurement, and it runs anywhere.

Our times are those of `ops/gpu/work.py`. FlashAttention's rates at heads of 64 are published ones (FlashAttention-3, arXiv
2407.08608, for the H100; 50 to 55 % of the peak, as FlashAttention-2 reaches, for the A100).
"""

# D channels of keys and values per head, T tokens

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from maclaurin.common.records import Record
from maclaurin.ops.gpu.peaks import PEAKS
from maclaurin.ops.gpu.work import Share, chunked, direct, longest_direct, nanoseconds

D = 64
HEAD_SIZES = (32, 64, 128)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
SHARES = {"A100": (Share(0.35, 0.30), Share(0.45, 0.40)), "H100": (Share(0.45, 0.40), Share(0.60, 0.55))}
# TFLOP/s of FlashAttention, forward and backward, by length; beyond the last as there
FLASH = {
    "A100": ({2048: 160.0, 4096: 168.0, 8192: 172.0}, {2048: 140.0, 4096: 150.0, 8192: 156.0}),
    "H100": ({2048: 371.0, 4096: 420.0, 8192: 460.0, 16384: 473.0}, {2048: 422.0, 4096: 453.0, 8192: 472.0}),
}


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
    ours = nanoseconds(PEAKS[gpu], chunked(D), share)
    return next(T for T in range(256, 2**20, 64) if flash_nanoseconds(gpu, T) > ours)


def run(console: Console, *, long: bool) -> list[RooflineRow]:
    rows = [
        RooflineRow(
            gpu,
            str(share),
            T,
            flash_nanoseconds(gpu, T),
            nanoseconds(PEAKS[gpu], chunked(D), share),
            nanoseconds(PEAKS[gpu], direct(T, D), share),
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
    console.print(_choices())
    return rows


def _choices() -> Table:
    """GPUs on which the same of both decides, products or bytes, share a row."""
    table = Table(title="up to how many tokens the direct form is chosen, unless `doctor --tune` has measured it")
    for column in ("GPU", *(f"heads of {size}" for size in HEAD_SIZES)):
        table.add_column(column, justify="right")
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, peak in PEAKS.items():
        alike.setdefault(tuple(longest_direct(peak, size) for size in HEAD_SIZES), []).append(name)
    for lengths, names in alike.items():
        table.add_row(", ".join(names), *(f"{length:,}" for length in lengths))
    return table
