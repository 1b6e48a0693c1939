"""Whole models against transformers' Llama of equal size with PyTorch's attention: a training step, and one more token.

Width, depth and heads are those of a size of this package. A training step is forward, loss, backward and fused AdamW of
one sequence. Both models take their steps in turn, in one process; the peak of memory is that of a step in a process of
its own. What would take minutes or gigabytes runs there alone, once, in models of few layers: a step's time is a straight
line in the number of layers. Llama's part of that is measured for the first mixer and serves the others.
Rows are written as they come, and an interrupted run can go on from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from maclaurin.bench.whole import DECODING, LLAMA, TRAINING, Job, Shape, Spent, by_layers, in_turn
from maclaurin.common.files import read_json, write_json
from maclaurin.common.progress import running
from maclaurin.common.records import Record
from maclaurin.ops import native

LONG_STEP = 8192  # tokens from which a training step is measured by layers
MOST_CACHED = 2**32  # bytes of a KV cache
COLUMNS = ("model", "what", "tokens", "batch", "tokens/s", "llama", "ratio", "peak", "llama's", "")


@dataclass(frozen=True)
class Models(Record):
    """What is measured. mixers: joined by "+" where they alternate."""

    shape: Shape = field(default_factory=Shape)
    mixers: Sequence[str] = ("2mamba", "2mamba-gated", "mamba2", "2mamba+sliding-window")
    lengths: Sequence[int] = (512, 2048)
    contexts: Sequence[int] = (1024, 16384)
    batches: Sequence[int] = (1,)

    @property
    def jobs(self) -> list[Job]:
        training = [Job(TRAINING, T, 1) for T in self.lengths]
        return training + [Job(DECODING, context, batch) for context in self.contexts for batch in self.batches]


LONG = Models(lengths=(512, 2048, 8192, 32768), contexts=(1024, 4096, 16384, 65536), batches=(1, 16))


@dataclass(frozen=True)
class ModelRow(Record):
    """tokens_per_s: of the model; ratio: to Llama's in the same run. peak: bytes of a training step beyond the model.

    by_layers: whether all this is of a line through models of few layers."""

    mixer: str
    what: str
    tokens: int
    batch: int
    tokens_per_s: float
    llama_tokens_per_s: float
    ratio: float
    peak: int | None = None
    llama_peak: int | None = None
    by_layers: bool = False

    @property
    def job(self) -> Job:
        return Job(self.what, self.tokens, self.batch)


@dataclass(frozen=True)
class Kept(Record):
    """Rows, and where they were measured."""

    shape: Shape
    threads: int
    torch: str
    native: str | None
    rows: Sequence[ModelRow] = ()


def run(
    console: Console, *, long: bool, models: Models | None = None, kept: Path | None = None, resume: bool = False
) -> list[ModelRow]:
    """kept: the file that rows are written to as they come. resume: those that it has are not measured again."""
    models = models or (LONG if long else Models())
    here = Kept(models.shape, torch.get_num_threads(), torch.__version__, native.isa() if native.available() else None)
    rows = _rows_of(kept, here) if resume and kept is not None and kept.exists() else []
    for row in _missing(models, rows):
        rows.append(row)
        if kept is not None:
            write_json(kept, {**here.to_json(), "rows": [row.to_json() for row in rows]})
        console.print(" ".join(cell for cell in _cells(row) if cell), highlight=False)
    table = Table(
        *COLUMNS, title=f"{models.shape.size}, {models.shape.fields['num_hidden_layers']} layers: tokens per second"
    )
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    return rows


def _rows_of(path: Path, here: Kept) -> list[ModelRow]:
    found = Kept.from_json(read_json(path), str(path))
    for name in ("shape", "threads", "torch", "native"):
        if getattr(found, name) != getattr(here, name):
            raise ValueError(
                f"{path} has rows with {name} {getattr(found, name)}, not {getattr(here, name)}: leave out --resume"
            )
    return list(found.rows)


def _missing(models: Models, rows: Sequence[ModelRow]) -> Iterator[ModelRow]:
    """What `rows`, which its reader extends, does not have."""
    for mixer in models.mixers:
        for job in models.jobs:
            if any(row.mixer == mixer and row.job == job for row in rows):
                continue
            with running(f"{mixer}, {job.what}, {job.tokens:,} tokens, {job.batch} at once"):
                row = _measure(mixer, models.shape, job, rows)
            if row is not None:
                yield row


def _measure(mixer: str, shape: Shape, job: Job, rows: Sequence[ModelRow]) -> ModelRow | None:
    """None where even the KV cache of few layers is too large."""
    too_large = job.what == DECODING and job.cache_bytes(shape) > MOST_CACHED
    if too_large and job.cache_bytes(Shape(shape.size, 2, shape.vocabulary)) > MOST_CACHED:
        return None
    if too_large or (job.what == TRAINING and job.tokens >= LONG_STEP):
        return _row(mixer, job, by_layers(mixer, shape, job), _known(job, rows) or by_layers(LLAMA, shape, job), True)
    ours, theirs = in_turn([mixer, LLAMA], shape, job)
    return _row(mixer, job, ours, theirs, False)


def _known(job: Job, rows: Sequence[ModelRow]) -> Spent | None:
    """Of Llama, from the row of another mixer."""
    return next(
        (Spent(1000 * job.done / row.llama_tokens_per_s, row.llama_peak or 0) for row in rows if row.job == job), None
    )


def _row(mixer: str, job: Job, ours: Spent, theirs: Spent, few: bool) -> ModelRow:
    return ModelRow(
        mixer,
        job.what,
        job.tokens,
        job.batch,
        tokens_per_s=1000 * job.done / ours.ms,
        llama_tokens_per_s=1000 * job.done / theirs.ms,
        ratio=theirs.ms / ours.ms,
        peak=ours.peak if job.what == TRAINING else None,
        llama_peak=theirs.peak if job.what == TRAINING else None,
        by_layers=few,
    )


def _cells(row: ModelRow) -> list[str]:
    speeds = (f"{row.tokens_per_s:.4g}", f"{row.llama_tokens_per_s:.4g}", f"{row.ratio:.2f}")
    peaks = ("" if x is None else f"{x / 2**20:,.0f} MiB" for x in (row.peak, row.llama_peak))
    few = "by layers" if row.by_layers else ""
    return [row.mixer, row.what, f"{row.tokens:,}", str(row.batch), *speeds, *peaks, few]
