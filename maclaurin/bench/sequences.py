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
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, distributed

from maclaurin.common.records import Record
from maclaurin.distributed import sequence_parallel
from maclaurin.mixers import Mixer, available_mixers, build_mixer
from maclaurin.processes.children import end_with_parent, lifeline

LENGTHS = (2048, 8192)  # tokens of a slice
AT_BOTH = ("2mamba", "mamba2", "gla", "gated-delta", "mlstm")
SOFTMAX_LENGTHS = (1024, 4096)
D_MODEL, HEADS = 256, 4
PROCESSES = 2
REPEATS = 7  # turns, after one that is not counted


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
        command = [sys.executable, *quiet, "-m", "maclaurin.bench.sequences", f"{folder}/store"]
        first = subprocess.Popen([*command, "0"], stdin=stdin, stdout=subprocess.DEVNULL)
        answer = subprocess.run([*command, "1"], stdin=stdin, check=True, capture_output=True, text=True).stdout
        first.wait()
    rows = [SequenceRow(**json.loads(line)) for line in answer.splitlines()]
    table = Table(title=f"a slice behind another one, {HEADS} heads of {D_MODEL // HEADS}, forward and backward")
    for column in ("mixer", "tokens of a slice", "bytes received", "CPU s", "of the first", "alone", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        seconds = (f"{one:.3f}" for one in (row.slice_s, row.first_s, row.alone_s))
        table.add_row(row.mixer, f"{row.tokens:,}", f"{row.received:,}", *seconds, f"{row.ratio:.2f}")
    console.print(table)
    return rows


def cases() -> list[tuple[str, int]]:
    """All mixers whose state stops growing at the longer slice, some of them at both, and softmax."""
    mixers = {name: build_mixer(name, D_MODEL, HEADS) for name in available_mixers()}
    finite = [name for name, mixer in mixers.items() if mixer.has_states and mixer.finite_state]
    short = [(name, LENGTHS[0]) for name in AT_BOTH]
    return [*short, *((name, LENGTHS[1]) for name in finite), *(("softmax", tokens) for tokens in SOFTMAX_LENGTHS)]


def _measured(store: str, rank: int) -> Iterator[SequenceRow]:
    """In the second process, whose rows are the answer, the slice is also computed alone."""
    torch.set_num_threads(1)
    files = distributed.FileStore(store, PROCESSES)
    distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES, store=files)
    for name, tokens in cases():
        torch.manual_seed(0)
        mixer = build_mixer(name, D_MODEL, HEADS)
        x = torch.randn(1, tokens, D_MODEL, dtype=torch.float32, device="cpu", requires_grad=True)
        received, slices, alone = 0, [], []
        for _ in range(1 + REPEATS):
            with sequence_parallel() as chain:
                slices.append(_cpu_seconds(mixer, x))
            received = chain.received_bytes
            if rank:
                alone.append(_cpu_seconds(mixer, x))
        of_all: list[float] = [0.0] * PROCESSES
        slices, alone = slices[1:], alone[1:]
        distributed.all_gather_object(of_all, min(slices))
        if rank:
            ratio = statistics.median(one / other for one, other in zip(slices, alone, strict=True))
            yield SequenceRow(name, tokens, received, min(slices), min(alone), ratio, of_all[0])
    distributed.destroy_process_group()


def _cpu_seconds(mixer: Mixer, x: Tensor) -> float:
    started = time.process_time()
    mixer(x)[0].square().sum().backward()
    return time.process_time() - started


if __name__ == "__main__":
    end_with_parent()
    for one in _measured(sys.argv[1], int(sys.argv[2])):
        print(json.dumps(one.to_json()), flush=True)
