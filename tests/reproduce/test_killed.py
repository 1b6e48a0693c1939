"""A run that is killed, not asked to stop: its processes end with it, and the same command goes on with its cell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = """
import sys
from dataclasses import replace
from maclaurin.reproduce import cost, papers
from maclaurin.reproduce.table import Paper, Table
from tests.evals.helpers import experiment

small = experiment(metric="loss", seeds=3, learning_rates=(1e-3, 1e-2), name="tiny")
small = replace(small, setting=replace(small.setting, steps=150))
known = {"softmax": 1.0, "linear": 2.0}
table = Table(name="tiny", where="Table 0", shows="Two rows", experiments={"minutes": small}, published=known)
papers.paper_of = lambda name: Paper.of("A paper of tests", table)
cost.STEPS = 1
from maclaurin.cli import main
main(["reproduce", "test", "tiny", "--jobs", "2", "--output", sys.argv[1]])
"""
CELLS = 2 * (2 + 2)  # two rows: two rates with the first seed, the better one with two others


def start(output: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", TINY, str(output)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def children(process: subprocess.Popen) -> list[int]:
    found = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(number) for file in found for number in file.read_text().split()]


def living(numbers: list[int]) -> list[int]:
    return [number for number in numbers if Path(f"/proc/{number}").exists()]


def finished(output: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (output / "cells").glob("*.json")}


def wait_until(true, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the processes of a run are found in /proc")
@pytest.mark.parametrize("done", [1, 5], ids=["while rates are tuned", "with the rates that were chosen"])
def test_a_killed_run_goes_on_with_the_cell_it_was_in(done, tmp_path):
    run = start(tmp_path)
    try:
        wait_until(lambda: len(finished(tmp_path)) >= done)
        workers = children(run)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    assert workers
    wait_until(lambda: not living(workers), 60)  # else they would go on beside those of the next run
    before = finished(tmp_path)
    assert done <= len(before) < CELLS
    kept = {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in before}

    again = start(tmp_path)
    _, said = again.communicate()
    assert again.returncode == 0, said
    assert f"{CELLS - len(before)} of {CELLS} cells to train" in said
    trained = [line for line in said.splitlines() if "core-seconds" in line]
    assert len(trained) == CELLS - len(before)
    after = finished(tmp_path)
    assert len(after) == CELLS and {name: after[name] for name in before} == before
    assert {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in before} == kept
    (table,) = json.loads((tmp_path / "reproduce.json").read_text())["tables"]
    assert all(row["seeds"] == 3 and len(row["validation"]) == 2 for row in table["result"]["rows"])
