"""A comparison that several processes share through its folder: every run once, whoever dies."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from maclaurin.processes import leases
from maclaurin.training import Recipe, execution
from maclaurin.training.compare import plan
from maclaurin.training.execution import Watch, execute
from tests.ranks import ends_on_ranks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
def test_three_processes_train_every_run_once_though_one_is_killed(tmp_path, monkeypatch):
    log, killed = tmp_path / "trained.txt", tmp_path / "killed"

    class Trained:
        """In the place of the process that trains a run."""

        def __init__(self, recipe, **_):
            if os.environ.get("RANK") == "2":
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            while not killed.exists():
                time.sleep(0.05)
            output = Path(recipe.output)
            with open(log, "a") as stream:
                stream.write(output.name + "\n")
            figures = {"step": recipe.steps, "eval_loss": len(output.name) + recipe.seed, "train_runtime": 1.0}
            (output / "log.jsonl").write_text(json.dumps(figures) + "\n")

        def ended(self):
            return 0, 1000

    monkeypatch.setattr(execution, "FORKS", False)
    monkeypatch.setattr(execution, "Alone", Trained)
    monkeypatch.setattr(execution, "SECONDS", 0.02)
    monkeypatch.setattr(leases, "BEAT", 0.2)
    monkeypatch.setattr(leases, "EXPIRES", 8.0)

    def runs(name):
        return plan(Recipe(output=str(tmp_path / name)), ["softmax", "linear", "gla"], 3)

    ends = ends_on_ranks(3, lambda rank: execute(runs("shared"), Watch(), jobs=2, shard=f"{rank + 1}/3"))
    assert ends == [0, 0, -signal.SIGKILL]
    assert Counter(log.read_text().split()) == Counter({Path(run.recipe.output).name: 1 for run in runs("shared")})
    assert not (tmp_path / "shared" / "leases").exists()

    execute(runs("alone"), Watch())
    shared, alone = ([run.result()["held_out_loss"] for run in runs(name)] for name in ("shared", "alone"))
    assert shared == alone
