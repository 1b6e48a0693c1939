"""One more token by context length: the op against PyTorch's attention over a KV cache, and a whole layer.

16 heads of 64 channels, float32. The peer's KV cache is allocated in advance, so it copies nothing. Times are means over 32
consecutive steps, so that each has one flush of the buffer into the recurrent state, right after 32 others, so that CPU
caches are warm. At the shortest context, which these extra tokens would change, the sequence is reset to it, and one step
before the measurement lets the buffer of kept tokens grow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import maclaurin
from maclaurin.common.records import ABSENT, Record
from maclaurin.common.timing import Timing, interleaved
from maclaurin.ops import power_attention

CONTEXTS = (1024, 4096, 16384, 65536)
VERY_LONG = 262144
WIDTH, HEADS, DIM = 1024, 16, 64
PREFILL = 8192  # tokens at a time
STEPS = 32  # consecutive


@dataclass(frozen=True)
class DecodeRow(Record):
    """ratio: of PyTorch's attention to the op. halves_ms: of the op with state_dtype="bfloat16", whose outputs are off by
    halves_error. layer_ms: of whole layers, by mixer; state_bytes: of 2mamba's."""

    context: int
    sdpa_ms: float
    op_ms: float
    ratio: float
    layer_ms: Mapping[str, float]
    state_bytes: int
    halves_ms: float | None = field(default=None, metadata=ABSENT)
    halves_error: float | None = field(default=None, metadata=ABSENT)


@torch.no_grad()
def run(console: Console, *, long: bool) -> list[DecodeRow]:
    torch.manual_seed(0)
    layers = {name: maclaurin.build_mixer(name, WIDTH, HEADS) for name in ("softmax", "2mamba", "mamba2")}
    table = Table(title=f"one more token, {HEADS} heads of {DIM}: ms (quartiles); state of the layer")
    for column in (
        "context",
        "SDPA",
        "power_attention",
        "ratio",
        "bfloat16 state",
        "its ratio to float32",
        "off by",
        "softmax layer",
        "2mamba layer",
        "mamba2 layer",
        "2mamba state",
    ):
        table.add_column(column, justify="right")
    rows = []
    for context in (*CONTEXTS, VERY_LONG) if long else CONTEXTS:
        op = _Op(context)
        halves = _Op(context, op.start, state_dtype="bfloat16")
        times = _steps({"SDPA": _Cached(context), "op": op, "halves": halves})
        error = _off_by(op, halves)
        # the softmax layer copies its KV cache: too slow to be interesting beyond this
        steps = {name: _Layer(layer, context) for name, layer in layers.items() if name != "softmax" or context <= 16384}
        layer_times = _steps(dict(steps))
        ratio = times["SDPA"].median / times["op"].median
        size = steps["2mamba"].state.nbytes
        cells = [str(layer_times.get(name, "")) for name in layers]
        lighter = (str(times["halves"]), f"{times['op'].median / times['halves'].median:.2f}x", f"{error:.1e}")
        shown = (f"{context:,}", str(times["SDPA"]), str(times["op"]), f"{ratio:.2f}x", *lighter, *cells)
        table.add_row(*shown, f"{size / 2**20:.1f} MiB")
        layer_ms = {name: timing.median for name, timing in layer_times.items()}
        medians = (times["SDPA"].median, times["op"].median, ratio)
        rows.append(DecodeRow(context, *medians, layer_ms, size, times["halves"].median, error))
    console.print(table)
    return rows


def _steps(candidates: dict[str, _Steps]) -> dict[str, Timing]:
    """Milliseconds per step."""

    def consecutive(steps: _Steps) -> Callable[[], None]:
        def run() -> None:
            for _ in range(STEPS):
                steps.step()

        return run

    runs: dict[str, Callable[[], object]] = {}
    for name, steps in candidates.items():
        runs |= {f"prepare {name}": steps.prepare, name: consecutive(steps)}
    times = interleaved(runs, seconds=4)
    return {name: Timing(t.median / STEPS, t.low / STEPS, t.high / STEPS) for name, t in times.items() if name in candidates}


class _Steps(ABC):
    """Something that processes one more token."""

    @abstractmethod
    def step(self) -> None: ...

    def prepare(self) -> None:
        """Warm the caches."""
        for _ in range(STEPS):
            self.step()


class _Cached(_Steps):
    """PyTorch's attention of one query over `context` keys and values."""

    def __init__(self, context: int) -> None:
        self.q, self.k, self.v = (
            torch.randn(1, HEADS, 1, DIM, dtype=torch.float32, device="cpu"),
            *torch.randn(2, 1, HEADS, context, DIM, dtype=torch.float32, device="cpu"),
        )

    def step(self) -> None:
        F.scaled_dot_product_attention(self.q, self.k, self.v)


class _Growing(_Steps):
    """A state that grows by one token per step, from `start`, one token short of the context."""

    start: Any
    state: Any = None

    def __init__(self, context: int) -> None:
        self.is_short = context == CONTEXTS[0]

    def prepare(self) -> None:
        if self.state is None or self.is_short:
            self.state = self.start.clone()
        if self.is_short:
            self.step()
        else:
            super().prepare()


class _Op(_Growing):
    """`power_attention` of one token after `context` others, or after those of the state `start`."""

    def __init__(self, context: int, start: Any = None, state_dtype: str = "float32") -> None:
        super().__init__(context)
        self.start = start
        self.state_dtype = state_dtype
        for done in range(0, context - 1 if start is None else 0, PREFILL):
            _, self.start = power_attention(*_tokens(min(PREFILL, context - 1 - done)), state=self.start)
        self.token = _tokens(1)

    def step(self) -> None:
        _, self.state = power_attention(*self.token, state=self.state, state_dtype=self.state_dtype)


def _off_by(op: _Op, halves: _Op) -> float:
    """Of the next output of both, the relative distance."""
    y, rounded = (power_attention(*op.token, state=op.start, state_dtype=each.state_dtype)[0] for each in (op, halves))
    return float((rounded - y).norm() / y.norm())


def _tokens(count: int) -> tuple[torch.Tensor, ...]:
    return *torch.randn(3, 1, count, HEADS, DIM, dtype=torch.float32, device="cpu"), -1e-3 * torch.rand(
        1, count, HEADS, dtype=torch.float32, device="cpu"
    )


class _Layer(_Growing):
    """A mixer after `context` tokens."""

    def __init__(self, mixer: maclaurin.Mixer, context: int) -> None:
        super().__init__(context)
        self.mixer = mixer
        self.start = None
        for done in range(0, context - 1, PREFILL):
            _, self.start = mixer(
                torch.randn(1, min(PREFILL, context - 1 - done), WIDTH, dtype=torch.float32, device="cpu"), self.start
            )
        self.token = torch.randn(1, 1, WIDTH, dtype=torch.float32, device="cpu")

    def step(self) -> None:
        _, self.state = self.mixer(self.token, self.state)
