"""One-token decoding of a whole layer by context length: 16 heads of 64 channels, float32."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import maclaurin
from benchmarks.timing import interleaved

CONTEXTS = (256, 1024, 4096, 16384)
MIXERS = ("softmax", "2mamba", "mamba2", "linear")
WIDTH, HEADS = 1024, 16


def run(console: Console, repeats: int = 64) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    table = Table(title=f"decoding one token, width {WIDTH}, {HEADS} heads: ms (quartiles), state")
    table.add_column("context", justify="right")
    for name in MIXERS:
        table.add_column(name, justify="right")
    table.add_column("2mamba vs softmax", justify="right")
    mixers = {name: maclaurin.build_mixer(name, WIDTH, HEADS) for name in MIXERS}
    for context in CONTEXTS:
        steps = {name: _Decoder(mixer, context) for name, mixer in mixers.items()}
        times = interleaved(dict(steps), repeats)
        ratio = times["softmax"].median / times["2mamba"].median
        cells = [f"{times[name]}, {steps[name].state.nbytes / 2**20:.1f} MiB" for name in MIXERS]
        table.add_row(str(context), *cells, f"{ratio:.2f}x")
        medians = {name: timing.median for name, timing in times.items()}
        rows.append({"context": context, "ms": medians, "vs_softmax": ratio})
    console.print(table)
    return rows


class _Decoder:
    """A sequence of `context` tokens that grows by one at each call."""

    def __init__(self, mixer: maclaurin.Mixer, context: int) -> None:
        self.mixer = mixer
        with torch.no_grad():
            _, self.state = mixer(torch.randn(1, context, WIDTH))

    def __call__(self) -> None:
        with torch.no_grad():
            _, self.state = self.mixer(torch.randn(1, 1, WIDTH), self.state)
