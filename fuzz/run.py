"""Hands cases to worker processes for a while, replaces those that die, and says what was found."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from fuzz.case import READY, REFUSED, RIGHT, Target
from fuzz.kinds import Kind

ROOT = Path(__file__).parents[1]
SECONDS_PER_CASE = 60  # of CPU time, after which a case counts as hanging: the machine may be busy
LONGEST_WAIT = 600  # seconds by the clock, for a case that waits and never ends
CASES_PER_WORKER = 2000  # then a new one begins, so that what one case leaves behind does not pile up
LONG = 2.0  # seconds: a first case that takes longer spends them on imports for all that follow
SEEDS_APART = 10**9


@dataclass(frozen=True)
class Plan:
    """What is searched and for how long: `seconds` in all, or `cases` of every target."""

    targets: list[Target]
    seconds: float | None = None
    cases: int | None = None
    seed: int = 0
    jobs: int = 1
    stop_at_first: bool = False
    worker_options: tuple[str, ...] = ()
    only_by_options: bool = False  # a failure counts only where the case is right in a worker without the options
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Found:
    """One cause of failures, with the first case that showed it."""

    target: str
    number: int
    cause: str
    detail: str
    seconds: float  # after the search began
    times: int = 1

    @property
    def replay(self) -> str:
        return f"python -m fuzz --replay {self.target}:{self.number}"


class Search:
    """The records of one search, shared by threads that drive one worker each."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] = print) -> None:
        self.plan = plan
        self.tell = tell
        self.ends: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[str] = Counter()
        self.found: dict[tuple[str, str], Found] = {}
        self.spent: Counter[str] = Counter()
        self.stopped = False
        self._given: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def next_case(self) -> tuple[str, int] | None:
        """From the target that is furthest behind its share of the time; None at the end."""
        with self._lock:
            plan = self.plan
            if (
                self.stopped
                or (plan.seconds is not None and self.seconds >= plan.seconds)
                or (plan.stop_at_first and self.found)
            ):
                return None
            open_targets = [t for t in plan.targets if plan.cases is None or self._given[t.name] < plan.cases]
            if not open_targets:
                return None
            target = min(open_targets, key=lambda t: (self.spent[t.name] / t.share, self._given[t.name]))
            number = plan.seed * SEEDS_APART + self._given[target.name]
            self._given[target.name] += 1
            self.spent[target.name] += 1e-3  # so that two workers do not begin with the same target
            return target.name, number

    def record(self, name: str, number: int, answer: dict[str, Any], seconds: float) -> None:
        with self._lock:
            self.spent[name] += min(seconds, LONG)
            if "end" in answer:
                self.ends[name, answer["end"]] += 1
                return
            self.failed[name] += 1
            key = (name, answer["cause"])
            if key in self.found:
                self.found[key].times += 1
                return
            self.found[key] = found = Found(name, number, answer["cause"], answer["detail"], self.seconds)
            self.tell(f"FAILED {name}: {found.cause}\n    {found.replay}")

    def cases(self, name: str) -> int:
        return self.ends[name, RIGHT] + self.ends[name, REFUSED] + self.failed[name]

    def progress(self) -> str:
        total = sum(self.cases(target.name) for target in self.plan.targets)
        return f"{self.seconds:6.0f} s  {total} cases  {self.failed.total()} failures of {len(self.found)} causes"

    def table(self) -> str:
        rows = [("target", "cases", "as usual", "refused in a sentence", "failures")]
        for name in (target.name for target in self.plan.targets):
            ends = (self.ends[name, RIGHT], self.ends[name, REFUSED], self.failed[name])
            rows.append((name, *map(str, (sum(ends), *ends))))
        totals = [sum(int(row[i]) for row in rows[1:]) for i in range(1, 5)]
        rows.append(("all", *map(str, totals)))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join(
            " | ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


class Worker:
    """One process. A case that ends it is a finding like any other."""

    def __init__(self, plan: Plan) -> None:
        self.log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the process
        self.cases = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", *plan.worker_options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env={**os.environ, **quiet(), **plan.environment},
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != READY:
            raise RuntimeError(f"a worker could not start: {self._written()[-2000:]}")

    def run(self, name: str, number: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.cases += 1
        try:
            self.process.stdin.write(f"{name} {number}\n")
        except BrokenPipeError:
            return self._ended()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            start, used = time.monotonic(), self._cpu_seconds()
            while not selector.select(5):
                if self._cpu_seconds() - used > SECONDS_PER_CASE or time.monotonic() - start > LONGEST_WAIT:
                    self.process.send_signal(signal.SIGABRT)  # faulthandler then writes where it was
                    return {**self._ended(), "cause": f"no end after {SECONDS_PER_CASE} s {self._place()}"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else self._ended()

    def _cpu_seconds(self) -> float:
        """Of the worker's process so far, whose state is all that Linux puts after the last bracket."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ended(self) -> dict[str, Any]:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"cause": f"the process ended with {how} {self._place()}", "detail": self._written()[-8000:]}

    def _written(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def _place(self) -> str:
        """The innermost line of the package in the last stack that faulthandler wrote."""
        stack = self._written().rpartition("most recent call first")[2]
        if sanitizer := re.search(r"SUMMARY: AddressSanitizer: (\S+) \S*/(\w+\.\w+):\d+", self._written()):
            return f"in {sanitizer[2]}: {sanitizer[1]}"
        found = re.search(rf'File "{re.escape(str(ROOT))}/([^"]+)", line \d+ in (\w+)', stack)
        return f"in {found[1]}:{found[2]}" if found else "somewhere"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None and self.cases < CASES_PER_WORKER

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def quiet() -> dict[str, str]:
    """One thread per worker, nothing from the network, and the instruction sets that this machine really has."""
    return {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",  # two threads on a busy machine would spin for each other
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
    }


def make_specimens(plan: Plan) -> None:
    """Before the clock starts, and once for all workers."""
    homes = {kind.home for target in plan.targets for kind in target.arguments if isinstance(kind, Kind)}
    if homes:
        command = [sys.executable, "-m", "fuzz.specimens", *sorted(homes)]
        quietly = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **quiet()}, **quietly)


def search(plan: Plan, tell: Callable[[str], None] = print, progress_every: float = 30) -> Search:
    """Run the plan to its end."""
    make_specimens(plan)
    books = Search(plan, tell)
    with ThreadPoolExecutor(plan.jobs) as pool:
        drivers = [pool.submit(_drive, books) for _ in range(plan.jobs)]
        try:
            while wait(drivers, progress_every).not_done:
                tell(books.progress())
        except KeyboardInterrupt:
            books.stopped = True  # after the cases that run now
    for driver in drivers:
        driver.result()  # a worker that could not start is raised here
    return books


def _drive(books: Search) -> None:
    with ExitStack() as stack:
        worker = stack.enter_context(Replaced(books.plan))
        unchanged = stack.enter_context(Replaced(replace(books.plan, worker_options=())))
        while case := books.next_case():
            start = time.monotonic()
            answer = worker.run(*case)
            if "cause" in answer and books.plan.only_by_options and "end" not in unchanged.run(*case):
                continue
            books.record(*case, answer, time.monotonic() - start)


class Replaced:
    """A worker, started when it is needed, and a new one in its place when it has ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.worker: Worker | None = None

    def __enter__(self) -> Replaced:
        return self

    def __exit__(self, *error: object) -> None:
        if self.worker is not None:
            self.worker.close()

    def run(self, name: str, number: int) -> dict[str, Any]:
        if self.worker is not None and not self.worker.alive:
            self.worker.close()
            self.worker = None
        self.worker = self.worker or Worker(self.plan)
        return self.worker.run(name, number)
