"""`maclaurin suite`: a run, a run that is interrupted, and what is refused."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest

from maclaurin.cli import main


def command(*arguments):
    return [sys.executable, "-m", "maclaurin.cli", "suite", *map(str, arguments)]


TINY_RUN = (
    "track",
    "--mixers",
    "softmax,gla-selective",
    "--seeds",
    "1",
    "--steps",
    "2",
    "--learning-rates",
    "0.001",
    "--jobs",
    "1",
)


def test_the_shell_runs_a_suite_and_goes_on_after_a_kill(tmp_path, capsys):
    output = ("--output", tmp_path / "out")
    with subprocess.Popen(command(*TINY_RUN, *output), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "2 cells to train, 0 of them done\n"
        done = next(line for line in process.stderr if line.startswith("["))  # before it, how far the cell is
        assert done.startswith("[1/2] ") and "parity, softmax" in done
        process.kill()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    assert len(kept) >= 1
    result = subprocess.run(command(*TINY_RUN, *output, "--json"), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[1/2]" not in result.stderr  # the first is not trained again
    results = json.loads(result.stdout)
    assert results == json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["label"] for row in results["tables"][0]["rows"]] == ["softmax", "gla-selective"]
    assert all(len(row["points"]) == 5 for row in results["tables"][0]["rows"])
    assert (tmp_path / "out" / "eval.html").is_file()
    for name, written in kept.items():
        assert (tmp_path / "out" / "cells" / name).stat().st_mtime_ns == written
    with pytest.raises(SystemExit) as ended:
        main(["suite", *map(str, (*TINY_RUN, *output))])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "gla-selective" in printed and "published elsewhere" in printed and "eval.html" in printed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_shell_is_interrupted_with_one_sentence(tmp_path, number, code):
    long = ("track", "--mixers", "softmax", "--steps", "100000", "--jobs", "1", "--output", tmp_path)
    process = subprocess.Popen(command(*long), stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "worker-0.txt").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    assert f"go on with: {shlex.join(command(*long))}" in process.communicate(timeout=120)[1]
    assert process.returncode == code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("eval",), "give the folder of a trained model; what mixers can learn is `maclaurin suite NAME`"),
        (("suite",), "Missing argument 'name'"),
        (("suite", "recall", "--model", "runs/first"), "the suite 'needle' only"),
        (("suite", "recal"), "suite must be one of"),
        (("suite", "recall", "--learning-rates", "fast"), "learning_rates must be numbers"),
    ],
)
def test_the_shell_says_what_is_missing(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in error and len(error.splitlines()) == 1


def test_the_old_form_of_a_suite_names_the_new_one(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["eval", "runs/first", "--suite", "recall", "--preset", "paper", "--learning_rates", "1e-3"])
    warning, error = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and "use `maclaurin suite recall --model runs/first`" in warning
    assert "the suite 'needle' only" in error
