"""A suite that several processes share through its folder: every cell once, whoever dies."""

import os
import signal
import time
from collections import Counter

import pytest

from maclaurin.commands.output import without
from maclaurin.evals import runner
from maclaurin.evals.runner import Event, Worker, load, run
from maclaurin.evals.summary import summary
from maclaurin.processes import leases
from tests.evals.helpers import experiment, outcome
from tests.ranks import ends_on_ranks
from tests.shell import typed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
def test_three_processes_train_every_cell_once_though_one_is_killed(tmp_path, monkeypatch):
    asked = experiment(seeds=3)
    cells, log = asked.cells(3), tmp_path / "trained.txt"
    monkeypatch.setattr(runner, "POLL", 0.05)
    monkeypatch.setattr(leases, "BEAT", 0.2)
    monkeypatch.setattr(leases, "EXPIRES", 8.0)  # nobody waits for the process that is killed before the test ends
    killed = tmp_path / "killed"

    def trained(worker, cell):
        if os.environ.get("RANK") == "2":
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while not killed.exists():
            time.sleep(0.05)
        with open(log, "a") as stream:
            stream.write(cell.key + "\n")
        worker.events.put(Event(cell, outcome=outcome(cell.learning_rate)))

    monkeypatch.setattr(Worker, "_train", trained)
    ends = ends_on_ranks(3, lambda rank: run(cells, tmp_path, jobs=1, shard=f"{rank + 1}/3"))
    assert ends == [0, 0, -signal.SIGKILL]
    assert Counter(log.read_text().split()) == Counter({cell.key: 1 for cell in cells})
    assert all(load(cell, tmp_path) is not None for cell in cells)
    assert not (tmp_path / "leases").exists()

    assert run(cells, tmp_path / "alone", jobs=1) == {}
    assert summary(asked, tmp_path, {}) == summary(asked, tmp_path / "alone", {})


def test_commands_of_all_shards_and_a_table_before_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = typed("suite", "recall", "--print-commands", "3", "--seeds", "2").stdout.splitlines()
    assert [line.split("maclaurin ", 1)[1] for line in printed] == [
        f"suite recall --seeds 2 --shard {part}/3" for part in (1, 2, 3)
    ]
    shown = typed("suite", "recall", "--table")
    assert shown.returncode == 0 and "softmax" in shown.stdout
    assert typed("suite", "recall", "--shard", "4/3").returncode == 2
    assert without(["a", "--shard=1/2", "--print_commands", "3", "b"], "--shard") == ["a", "--print_commands", "3", "b"]
