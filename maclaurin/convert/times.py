"""How long a stage has taken, over all of its runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from maclaurin.common.files import read_json, write_json
from maclaurin.common.records import Record

TIMES = "times.json"


@dataclass(frozen=True)
class Times(Record):
    """Wall time, and CPU time of all cores together."""

    seconds: float
    cpu_seconds: float


def times_of(folder: Path) -> Times:
    try:
        return Times.from_json(read_json(folder / TIMES))
    except (OSError, ValueError):  # missing or damaged: counted from now on
        return Times(0.0, 0.0)


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Adds the block to what is stored in the folder, also if it is interrupted."""
    started, cpu = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        before = times_of(folder)
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
        write_json(folder / TIMES, Times(before.seconds + seconds, before.cpu_seconds + cpu_seconds).to_json())
