"""The search itself: it is quiet where nothing is wrong, finds what is, survives it, and says how to see it again."""

import os
import shutil
import signal

import pytest
import torch

from fuzz import judge
from fuzz.case import Draw, Failure
from fuzz.mutants import MUTANTS, Check, changed, checked
from fuzz.mutate import Trap, mutate
from fuzz.run import Plan, Worker, search
from fuzz.targets import TARGETS, matching
from fuzz.worker import attempt
from maclaurin.ops import decay

QUICK = ["ops", "whole", "mixers", "states", "file-state", "file-yaml", "file-tuning"]


def test_some_cases_of_the_quick_targets_find_nothing():
    books = search(Plan(matching(QUICK), cases=4), tell=lambda line: None)
    assert not books.found, [(found.replay, found.detail) for found in books.found.values()]
    assert all(books.cases(name) == 4 for name in QUICK)


def first_failure(target, most=60):
    found = ((number, attempt(target, number)) for number in range(most))
    return next((number, answer) for number, answer in found if "cause" in answer)


def test_a_planted_fault_is_found_and_found_again_by_its_number(monkeypatch):
    """A decay that is a thousandth too weak."""
    right = decay.factor
    monkeypatch.setattr(decay, "factor", lambda *args: right(*args) * 1.001)
    number, answer = first_failure("ops")
    assert "outputs off by" in answer["cause"] or "gradient" in answer["cause"]
    assert attempt("ops", number)["cause"] == answer["cause"]
    monkeypatch.undo()
    assert "end" in attempt("ops", number)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_every_mutant_changes_something_that_is_there(mutant):
    assert checked(mutant) if isinstance(mutant, Check) else mutant.new in changed(mutant)


def test_a_worker_that_dies_is_a_finding():
    worker = Worker(Plan([TARGETS["whole"]]))
    try:
        assert "end" in worker.run("whole", 0)
        os.kill(worker.process.pid, signal.SIGSEGV)
        answer = worker.run("whole", 1)
        assert "ended with SIGSEGV" in answer["cause"] and not worker.alive
    finally:
        worker.close()


def test_numbers_are_judged_by_what_plain_pytorch_loses():
    x = {"x": torch.linspace(1, 2, 100)}

    def cancelling(inputs):
        return {"y": (inputs["x"] + 1e4) - 1e4}

    exact = cancelling({"x": x["x"].double()})
    judge.judge(cancelling(x), exact, torch.float32, cancelling, x)
    for wrong in ({"y": exact["y"] * 1.05}, {"y": exact["y"] * torch.nan}):
        with pytest.raises(Failure, match="y off by"):
            judge.judge(wrong, exact, torch.float32, cancelling, x)


HEADER = b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
WHOLE = {
    "state.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"x",
    "config.json": b'{"a": 1, "b": [2, 3]}',
    "log.jsonl": b'{"a": 1}\n{"b": [2, 3]}\n',
    "optimizer.pt": b"0123456789",
    "config.yaml": b"a: 1\nb: 2\n",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_number_gives_the_same_mutation_again(name, tmp_path):
    def mutated(number):
        trap = Trap(tmp_path)
        shutil.rmtree(trap.home, ignore_errors=True)
        trap.home.mkdir()
        path = trap.home / name
        path.write_bytes(WHOLE[name])
        mutate(Draw("test", number), path, trap)
        return path.read_bytes() if path.is_file() else path.is_dir()

    first, second = ([mutated(number) for number in range(30)] for _ in range(2))
    assert first == second
    assert sum(content != WHOLE[name] for content in first) > 25


def test_a_payload_that_is_unpickled_springs_the_trap(tmp_path):
    for number in range(40):
        trap = Trap(tmp_path / str(number))
        trap.home.mkdir(parents=True)
        path = trap.home / "optimizer.pt"
        path.write_bytes(b"x" * 10)
        draw = Draw("test", number)
        mutate(draw, path, trap)
        if draw.chosen["mutation"] == "pickle":
            try:
                torch.load(path, weights_only=False)
            except Exception:
                continue
    assert list(tmp_path.glob("*/marker"))
