"""Sequences over processes: what one of them receives, and what its slice costs beside the same slice alone.

Two processes on this machine, one thread each, one layer, forward and backward. CPU seconds are those of a process, in which
waiting for the other one does not count. A ratio is the median over turns, in each of which the slice is computed behind
another one and alone.
"""

from __future__ import annotations

import json
import statistics
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
from maclaurin.mixers import Mixer, available_mixers, build_mixer
from maclaurin.processes.children import end_with_parent, lifeline

MIXERS = ("2mamba", "mamba2", "gla", "gated-delta", "mlstm", "softmax")  # at all lengths
LENGTHS = (2048, 8192)  # tokens of a slice
SLOW = ("2mamba-delta", "taylor")  # minutes at the longest of them: only with --long
D_MODEL, HEADS = 256, 4
PROCESSES = 2
REPEATS = 3


@dataclass(frozen=True)
class SequenceRow(Record):
    """received: bytes, forward and backward. CPU seconds: of a slice that has another before it, of that other one, and of
    one that has none before it; ratio: of the first and the last of these.
    """

    mixer: str
    tokens: int
    received: int
    slice_s: float
    alone_s: float
    ratio: float
    first_s: float


def run(console: Console, *, long: bool) -> list[SequenceRow]:
    with tempfile.TemporaryDirectory() as folder, lifeline() as stdin:
        quiet = ["-W", "ignore::RuntimeWarning:runpy"]  # the package imports what is run here as a script
        command = [sys.executable, *quiet, "-m", "maclaurin.bench.sequences", f"{folder}/store", str(int(long))]
        first = subprocess.Popen([*command, "0"], stdin=stdin, stdout=subprocess.DEVNULL)
        answer = subprocess.run([*command, "1"], stdin=stdin, check=True, capture_output=True, text=True).stdout
        first.wait()
    rows = [SequenceRow(**row) for row in json.loads(answer)]
    table = Table(title=f"a slice behind another one, {HEADS} heads of {D_MODEL // HEADS}, forward and backward")
    for column in ("mixer", "tokens of a slice", "bytes received", "CPU s", "of the first", "alone", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        seconds = (f"{one:.3f}" for one in (row.slice_s, row.first_s, row.alone_s))
        table.add_row(row.mixer, f"{row.tokens:,}", f"{row.received:,}", *seconds, f"{row.ratio:.2f}")
    console.print(table)
    return rows


def cases(long: bool) -> list[tuple[str, int]]:
    """The mixers above, and at the longest slice all others whose state stops growing."""
    finite = [name for name in available_mixers() if name not in MIXERS and (long or name not in SLOW)]
    finite = [name for name in finite if (mixer := build_mixer(name, D_MODEL, HEADS)).has_states and mixer.finite_state]
    return [(name, tokens) for name in MIXERS for tokens in LENGTHS] + [(name, LENGTHS[-1]) for name in finite]


def _measured(store: str, long: bool, rank: int) -> list[SequenceRow]:
    torch.set_num_threads(1)
    files = distributed.FileStore(store, PROCESSES)
    distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES, store=files)
    rows = []
    for name, tokens in cases(long):
        torch.manual_seed(0)
        mixer = build_mixer(name, D_MODEL, HEADS)
        x = torch.randn(1, tokens, D_MODEL, dtype=torch.float32, device="cpu", requires_grad=True)
        received, behind, alone = 0, [], []
        for _ in range(REPEATS):
            with sequence_parallel() as chain:
                behind.append(_cpu_seconds(mixer, x))
            received = chain.received_bytes
            alone.append(_cpu_seconds(mixer, x))
        ratio = statistics.median(one / other for one, other in zip(behind, alone, strict=True))
        both: list[float] = [0.0] * PROCESSES
        distributed.all_gather_object(both, min(behind))
        rows.append(SequenceRow(name, tokens, received, min(behind), min(alone), ratio, both[0]))
    distributed.destroy_process_group()
    return rows


def _cpu_seconds(mixer: Mixer, x: Tensor) -> float:
    started = time.process_time()
    mixer(x)[0].square().sum().backward()
    return time.process_time() - started


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps([row.to_json() for row in _measured(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]))]))
