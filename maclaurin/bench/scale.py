"""What training takes on 8, 64 and 512 GPUs: a model, not a measurement, and it runs anywhere.

The thesis's medium model with 2Mamba (24 heads of 64 channels, 27 layers) in bfloat16 on machines of 8 H100. Bandwidths are
those that NVIDIA states: NVLink 450 GB/s each way between GPUs of a machine, one port of 400 Gb/s per GPU between machines.
Products reach a share of the peak that is an assumption; mixers take what `ops/gpu/work.py` has for them.

    8k tokens      parameters and gradients sharded over all GPUs (FSDP2): two gathers and one scatter per step
    1M tokens      every sequence over the 8 GPUs of a machine, or over 64; machines are data parallel
      chain        a state and its gradient from a GPU to the next in every layer; each of P waits P − 1 of L + P − 1 times
      gather       all states to all GPUs, no chain to wait for; each slice is folded once more, before the states are there
      softmax      keys and values of all other slices come by (a ring), and every pair of tokens is computed

Exchanges of parameters and of rings are hidden behind products as far as those take; exchanges of states are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from maclaurin.bench.roofline import flash_nanoseconds
from maclaurin.common.records import Record
from maclaurin.ops.gpu.peaks import PEAKS
from maclaurin.ops.gpu.work import USUAL, chunked, nanoseconds

GPU, SHARE = "H100", 0.5
IN_MACHINE, BETWEEN = 450e9, 50e9  # bytes per second to a GPU
GPUS_OF_MACHINE = 8
LATENCY = 20e-6  # seconds until a message begins to arrive
HIDDEN, INNER, LAYERS, HEADS, DIM, WORDS = 1536, 3072, 27, 24, 64, 32000
PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * INNER) + 2 * WORDS * HIDDEN
STATE = HEADS * 65 * 64 // 2 * 65 * 4  # bytes of a layer: d(d+1)/2 features, values and their sum, float32
KEYS_AND_VALUES = 2 * HIDDEN * 2  # bytes of a token in a layer
TOTALS = (8, 64, 512)
SHORT, LONG = 8192, 2**20
SEQUENCES_PER_GPU = 4


@dataclass(frozen=True)
class ScaleRow(Record):
    """Seconds of one step. share: of the time that is products. tokens_per_s: of all GPUs."""

    gpus: int
    layout: str
    products_s: float
    exchange_s: float
    waiting_s: float
    step_s: float
    tokens_per_s: float

    @property
    def share(self) -> float:
        return self.products_s / self.step_s


def bandwidth(gpus: int) -> float:
    return IN_MACHINE if gpus <= GPUS_OF_MACHINE else BETWEEN


def products(tokens: float) -> float:
    """Seconds of a GPU for so many tokens without their mixers: six operations per parameter."""
    return 6 * PARAMETERS * tokens / (SHARE * PEAKS[GPU].tflops * 1e12)


def second_order(tokens: float) -> float:
    """Seconds of all mixers for so many tokens, forward and backward."""
    return 1e-9 * LAYERS * HEADS * tokens * nanoseconds(PEAKS[GPU], chunked(DIM), USUAL)


def sharded(gpus: int) -> ScaleRow:
    tokens = SEQUENCES_PER_GPU * SHORT
    work = products(tokens) + second_order(tokens)
    exchange = 3 * PARAMETERS * 2 * (gpus - 1) / gpus / bandwidth(gpus)
    step = max(work, exchange)
    return ScaleRow(gpus, "8k tokens, sharded", work, exchange, step - work, step, gpus * tokens / step)


def sequences(gpus: int, over: int, how: str) -> ScaleRow:
    """A sequence of 1M tokens over so many GPUs of all; gradients are summed over all of them."""
    tokens = LONG / over
    gradients = 2 * PARAMETERS * 2 / bandwidth(gpus)
    if how == "softmax":
        work = products(tokens) + 1e-9 * LAYERS * HEADS * tokens * flash_nanoseconds(GPU, LONG)
        exchange = 3 * LAYERS * (LONG - tokens) * KEYS_AND_VALUES / bandwidth(over) + gradients
        step = max(work, exchange)
        waiting = step - work
    else:
        work = products(tokens) + second_order(tokens)
        states = STATE * ((over - 1) if how == "gather" else 1)
        exchange = 2 * LAYERS * (states / bandwidth(over) + LATENCY)
        again = second_order(tokens) / 3  # one more forward
        waiting = again if how == "gather" else (work + exchange) * (over - 1) / LAYERS
        step = max(work + exchange + waiting, gradients)
    name = f"1M tokens over {over}, {how}"
    return ScaleRow(gpus, name, work, exchange, waiting, step, gpus / over * LONG / step)


def run(console: Console, *, long: bool) -> Sequence[ScaleRow]:
    rows = [sharded(gpus) for gpus in TOTALS]
    for gpus in TOTALS:
        rows += [sequences(gpus, over, how) for over in (8, 64) if over <= gpus for how in ("chain", "gather", "softmax")]
    table = Table(title=f"modelled, medium (0.{PARAMETERS // 10**7} billion parameters), 2Mamba, {GPU}: seconds of a step")
    for column in ("GPUs", "layout", "products", "exchange", "waiting", "step", "tokens/s", "products of step"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (f"{value:.3f}" for value in (row.products_s, row.exchange_s, row.waiting_s, row.step_s))
        table.add_row(str(row.gpus), row.layout, *times, f"{row.tokens_per_s / 1e6:.2f} M", f"{100 * row.share:.0f} %")
    console.print(table)
    return rows
