"""Many cells in parallel processes, each saved in a file of its own as soon as it is done.

The file is named after the cell's settings and contains them, so a run that was interrupted resumes with the cells that have
no file, and a changed setting is another cell. A cell that fails, or whose process dies, is reported; the others continue.
Several runs, on several machines, can share a folder: each takes cells that no other one is training, and ends when all
are done.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maclaurin.common.arguments import at_least_one
from maclaurin.common.files import read_json, write_json
from maclaurin.common.shards import WHOLE, own_first
from maclaurin.evals.cells import Cell
from maclaurin.evals.learn import Outcome
from maclaurin.processes.children import APART
from maclaurin.processes.leases import Leases
from maclaurin.processes.waiting import ASLEEP

ENVIRONMENT = {"OMP_NUM_THREADS": "1"} | ASLEEP  # threads that spin would take the core of another cell

POLL = 1.0  # seconds between two looks for cells that others have left or finished


@dataclass(frozen=True)
class Event:
    """What happened to a cell: a step, an outcome, or an error."""

    cell: Cell
    step: int = 0
    loss: float | None = None
    outcome: Outcome | None = None
    error: str = ""
    process: int = 0


Watch = Callable[[Event], None]


def path_of(cell: Cell, folder: Path) -> Path:
    return folder / "cells" / f"{cell.key}.json"


def load(cell: Cell, folder: Path) -> Outcome | None:
    """The outcome of a cell, if it is done. A cell whose file cannot be read is trained again."""
    try:
        outcome = Outcome.from_json(read_json(path_of(cell, folder)).get("outcome"))
    except (OSError, ValueError):
        return None
    return outcome if len(outcome.scores) == len(cell.test) else None


def save(cell: Cell, outcome: Outcome, folder: Path) -> None:
    write_json(path_of(cell, folder), {"cell": cell.settings(), "outcome": outcome.to_json()})


def run(
    cells: Sequence[Cell], folder: Path, *, jobs: int, watch: Watch = lambda event: None, shard: str = WHOLE
) -> dict[str, str]:
    """Train what is not done yet; the errors by the key of the cell.

    shard: the cells it begins with. If interrupted, it ends its processes and raises KeyboardInterrupt; finished cells are
    kept.
    """
    at_least_one("jobs", jobs)
    missing = {cell.key: cell for cell in own_first(cells, shard) if load(cell, folder) is None}
    if not missing:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    todo: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    workers = [Worker(todo, events, folder / f"worker-{n}.txt") for n in range(min(jobs, len(missing)))]
    errors: dict[str, str] = {}
    with Leases(folder / "leases") as leases:
        try:
            for worker in workers:
                worker.start()
            while missing:
                for event in _taken(missing, leases, len(workers), folder):
                    if event.outcome is None:
                        todo.put(event.cell)
                    else:
                        events.put(event)
                try:
                    event = events.get(timeout=POLL)
                except queue.Empty:
                    continue
                key = event.cell.key
                if event.outcome is not None:
                    save(event.cell, event.outcome, folder)
                elif event.error:
                    errors[key] = event.error
                if event.outcome is not None or event.error:
                    del missing[key]
                    leases.release(key)
                watch(event)
        finally:
            for worker in workers:
                todo.put(None)
                worker.stop()
    return errors


def _taken(missing: Mapping[str, Cell], leases: Leases, most: int, folder: Path) -> Iterator[Event]:
    """Of cells that nobody trains, as many as there are workers without one; with the outcome where others have made it."""
    for key, cell in missing.items():
        if len(leases.held) >= most:
            return
        if key not in leases.held and leases.take(key):
            yield Event(cell, outcome=load(cell, folder))


class Worker(threading.Thread):
    """Drives one process: a new one if it dies."""

    def __init__(self, todo: queue.SimpleQueue[Cell | None], events: queue.SimpleQueue[Event], log: Path) -> None:
        super().__init__(daemon=True)
        self.todo, self.events, self.log = todo, events, log
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.starting = threading.Lock()  # so that no process is started after `end`

    def run(self) -> None:
        while (cell := self.todo.get()) is not None and not self.stopped:
            try:
                self._train(cell)
            except Exception as error:  # the run needs an event for every cell
                self.events.put(Event(cell, error=f"{type(error).__name__}: {error}"))

    def _train(self, cell: Cell) -> None:
        with self.starting:
            if self.stopped:
                return
            if self.process is None or self.process.poll() is not None:
                self.process = self._start()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(cell.to_json()) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            if "outcome" in message:
                return self.events.put(Event(cell, outcome=Outcome.from_json(message["outcome"])))
            if "error" in message:
                return self.events.put(Event(cell, error=message["error"]))
            self.events.put(Event(cell, message["step"], message["loss"], process=self.process.pid))
        code = self.process.wait()
        self.events.put(Event(cell, error=f"its process ended with code {code}, out of memory perhaps; see {self.log}"))

    def _start(self) -> subprocess.Popen[str]:
        with open(self.log, "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "maclaurin.evals.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | ENVIRONMENT,
                **APART,
            )

    def stop(self) -> None:
        with self.starting:
            self.stopped = True
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
