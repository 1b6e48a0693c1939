"""Sequences over processes: what one of them receives, and what its slice costs beside the same slice alone.

Two processes on this machine, one thread each; the second is measured, one layer, forward and backward. CPU seconds are
those of its process, in which waiting for the first one does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, distributed

from maclaurin.common.records import Record
from maclaurin.distributed import sequence_parallel
from maclaurin.mixers import Mixer, build_mixer
from maclaurin.processes.children import end_with_parent, lifeline

MIXERS = ("2mamba", "mamba2", "gla", "gated-delta", "mlstm", "softmax")
LENGTHS = (2048, 8192)  # tokens of a slice
D_MODEL, HEADS = 256, 4
PROCESSES = 2
REPEATS = 2


@dataclass(frozen=True)
class SequenceRow(Record):
    """received: bytes, forward and backward. CPU seconds: of a slice that has another before it, and of one that has not."""

    mixer: str
    tokens: int
    received: int
    slice_s: float
    alone_s: float

    @property
    def ratio(self) -> float:
        return self.slice_s / self.alone_s


def run(console: Console, *, long: bool) -> list[SequenceRow]:
    with tempfile.TemporaryDirectory() as folder, lifeline() as stdin:
        quiet = ["-W", "ignore::RuntimeWarning:runpy"]  # the package imports what is run here as a script
        command = [sys.executable, *quiet, "-m", "maclaurin.bench.sequences", f"{folder}/store"]
        first = subprocess.Popen([*command, "0"], stdin=stdin, stdout=subprocess.DEVNULL)
        answer = subprocess.run([*command, "1"], stdin=stdin, check=True, capture_output=True, text=True).stdout
        first.wait()
    rows = [SequenceRow(**row) for row in json.loads(answer)]
    table = Table(title=f"a slice behind another one, {HEADS} heads of {D_MODEL // HEADS}, forward and backward")
    for column in ("mixer", "tokens of a slice", "bytes received", "CPU s", "CPU s alone", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = f"{row.tokens:,}", f"{row.received:,}", f"{row.slice_s:.3f}", f"{row.alone_s:.3f}", f"{row.ratio:.2f}"
        table.add_row(row.mixer, *cells)
    console.print(table)
    return rows


def _measured(store: str, rank: int) -> list[SequenceRow]:
    torch.set_num_threads(1)
    files = distributed.FileStore(store, PROCESSES)
    distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES, store=files)
    rows = []
    for name in MIXERS:
        for tokens in LENGTHS:
            torch.manual_seed(0)
            mixer = build_mixer(name, D_MODEL, HEADS)
            x = torch.randn(1, tokens, D_MODEL, dtype=torch.float32, device="cpu", requires_grad=True)
            received, behind, alone = 0, [], []
            for _ in range(REPEATS):  # in turn, and the shortest of each: other processes on the machine only add to them
                with sequence_parallel() as chain:
                    behind.append(_cpu_seconds(mixer, x))
                received = chain.received_bytes
                alone.append(_cpu_seconds(mixer, x))
            rows.append(SequenceRow(name, tokens, received, min(behind), min(alone)))
    distributed.destroy_process_group()
    return rows


def _cpu_seconds(mixer: Mixer, x: Tensor) -> float:
    started = time.process_time()
    mixer(x)[0].square().sum().backward()
    return time.process_time() - started


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps([row.to_json() for row in _measured(sys.argv[1], int(sys.argv[2]))]))
