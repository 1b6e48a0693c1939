"""What a comparison shows while it runs: rows on a terminal, lines elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from maclaurin.common import progress
from maclaurin.training import Recipe
from maclaurin.training.compare import plan
from maclaurin.training.tables import LiveTable

RESULT = {"held_out_loss": 2.5, "tokens_per_second": 10.0, "peak_bytes": 5, "seconds": 7.0}


@pytest.fixture
def runs(tmp_path):
    made = plan(Recipe(output=str(tmp_path), steps=200, length=256, batch_size=8), ["linear", "2mamba"], seeds=1)
    for run in made:
        Path(run.recipe.output).mkdir()
        (Path(run.recipe.output) / "output.txt").write_text("")
    return made


def finish(run):
    run.result_path.write_text(json.dumps(RESULT))


def rows(table):
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table._table())
    return [line for line in captured.get().splitlines() if "│" in line]


def test_a_finished_run_is_done_and_has_its_loss_whoever_finished_it(runs):
    finish(runs[0])
    table = LiveTable(runs, 200)
    first, second = rows(table)
    assert "done" in first and "2.5000" in first
    assert "queued" in second
    table.end(runs[0])
    table.start(runs[1])
    assert "done" in rows(table)[0] and "0/200" in rows(table)[1]


def test_where_there_is_no_terminal_lines_say_what_goes_on(runs, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    table = LiveTable(runs, 200)
    run = runs[1]
    table.start(run)
    table.update(run, {})
    (Path(run.recipe.output) / "output.txt").write_text("tokenising stdlib (train): 256 documents\n")
    table.update(run, {})
    table.update(run, {"step": 10, "loss": 3.25})
    time.sleep(0.01)
    table.update(run, {"step": 20, "loss": 3.0})
    finish(run)
    table.end(run)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("[2/2] 2mamba (seed 0): ") for line in lines)
    said = [line.split(": ", 1)[1] for line in lines]
    assert said[:3] == ["started", "loading", "tokenising stdlib (train): 256 documents"]
    assert said[3].startswith("step 10/200, loss 3.2500")
    assert "step 20/200, loss 3.0000, " in said[4] and "tokens/s, " in said[4] and said[4].endswith(" left")
    assert said[5] == "validation loss 2.5000, 7 s"


def test_lines_come_every_few_seconds_not_with_every_step(runs, capsys):
    table = LiveTable(runs, 200)
    table.start(runs[0])
    for step in range(100):
        table.update(runs[0], {"step": step})
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_in_a_comparison_says_the_command_that_goes_on(tmp_path):
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": f"{i} green bottles\n" * 4}) for i in range(150)))
    flags = [
        "--mixers",
        "linear",
        "--seeds",
        "1",
        "--lr",
        "1e-3",
        "--no_recall",
        "--steps",
        "100000",
        "--length",
        "32",
        "--batch_size",
        "2",
    ]
    flags += ["--corpus", str(tmp_path / "text.jsonl"), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-m", "maclaurin.cli", "compare", *flags]
    environment = os.environ | {"MACLAURIN_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert "[1/1] linear (seed 0): started" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1].splitlines()
    assert said[-1] == f"maclaurin: stopped; go on with: {' '.join(command)}"
    assert process.returncode == 130
