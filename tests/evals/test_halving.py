"""Successive halving: the best go on, the floor holds, references stay, and an interrupted search resumes."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from maclaurin.cli import main
from maclaurin.evals.cells import Row
from maclaurin.evals.halving import GOES_ON, REFERENCE, Rung, halve
from maclaurin.evals.page import page
from maclaurin.evals.planning import plan
from maclaurin.evals.results import SuiteResult
from maclaurin.evals.runner import load, save
from maclaurin.evals.searched import search_table
from maclaurin.evals.suites.search import REFERENCES, RUNGS
from maclaurin.evals.summary import summary
from maclaurin.report import build
from tests.evals.helpers import experiment, outcome, printed
from tests.evals.test_loss import losses

LOSSES = {"a": 1.5, "b": 1.4, "c": 1.3, "d": 1.2, "fox": 1.0}
RECALLS = {"a": 0.9, "b": 0.9, "c": 0.9, "d": 0.2, "fox": 0.1}


@pytest.fixture
def both():
    rows = {label: Row(("softmax",), {"softmax": {"conv_width": n + 1}}) for n, label in enumerate(LOSSES)}
    common = {"rows": rows, "learning_rates": (1e-3,), "reference": None}
    recall = experiment(**common, name="mqar")
    return [replace(recall, name="text", metric="loss", axis="", test=recall.test[1:]), recall]


class Trainer:
    """Writes made-up cells where there are none, and counts them."""

    def __init__(self, folder, without=()):
        self.folder, self.without, self.trained = folder, without, []

    def __call__(self, experiments):
        errors = {}
        for one in experiments:
            for cell in one.cells(one.seeds):
                if load(cell, self.folder) is not None:
                    continue
                self.trained.append((one.name, cell.label, cell.seed))
                if cell.label in self.without:
                    errors[cell.key] = "ValueError: no"
                elif one.metric == "loss":
                    save(cell, losses(0.5, LOSSES[cell.label]), self.folder)
                else:
                    save(cell, outcome(RECALLS[cell.label]), self.folder)
        return [summary(one, self.folder, errors) for one in experiments], errors


def verdicts(tables, rung):
    return {row.label: row.verdict for table in tables if table.rung == rung for row in table.rows}


def test_the_best_go_on_and_references_take_no_place(tmp_path, both):
    rungs = (Rung(1, 1, 0.5), Rung(2, 2, 0.5, floor=0.5), Rung(4, 1, 0.0))
    tables, errors = halve(both, rungs, ["fox"], Trainer(tmp_path))
    assert errors == {}
    assert [(table.experiment, table.rung, table.setting.steps, table.seeds) for table in tables] == [
        *(("text-1", 1, 4, 1), ("text-2", 2, 8, 2), ("mqar-2", 2, 8, 2), ("text-3", 3, 16, 1)),
    ]  # recall where it has a say
    assert verdicts(tables, 1) == {"a": "out: 4 of 4", "b": "out: 3 of 4", "c": GOES_ON, "d": GOES_ON, "fox": REFERENCE}
    assert verdicts(tables, 2) == {"c": GOES_ON, "d": "out: recall 0.200 is below 0.5", "fox": REFERENCE}
    assert verdicts(tables, 3) == {"c": "1 of 1", "fox": REFERENCE}


def test_a_search_resumes_with_what_is_missing(tmp_path, both):
    rungs = (Rung(1, 1, 0.5, floor=0.1), Rung(2, 1, 0.0, floor=0.1))
    first, again, longer = (Trainer(tmp_path) for _ in range(3))
    halve(both, rungs[:1], ["fox"], first)
    found, _ = halve(both, rungs, ["fox"], again)
    assert len(first.trained) == 10 and {name for name, *_ in again.trained} == {"text-2", "mqar-2"}
    assert {label for _, label, _ in again.trained} == {"c", "d", "fox"}
    assert halve(both, rungs, ["fox"], longer) == (found, {}) and longer.trained == []


def test_rates_are_tuned_with_one_seed_and_kept_by_the_rungs_with_several(tmp_path, both):
    text = replace(both[0], learning_rates=(1e-3, 1e-2))
    trainer = Trainer(tmp_path)
    tables, _ = halve([text], (Rung(1, 1, 1.0), Rung(2, 1, 1.0), Rung(4, 2, 0.0)), ["fox"], trainer)
    tried = [{tried.learning_rate for row in table.rows for tried in row.validation} for table in tables]
    assert tried == [{1e-3, 1e-2}, {1e-3, 1e-2}, {1e-3}]  # of two equals the smaller one
    assert trainer.trained.count(("text-3", "a", 0)) == trainer.trained.count(("text-3", "a", 1)) == 1


def test_one_that_fails_is_out_and_named(tmp_path, both):
    rungs = (Rung(1, 1, 0.5, floor=0.1), Rung(2, 1, 0.0))
    tables, errors = halve(both, rungs, ["fox"], Trainer(tmp_path, without=["d"]))
    assert len(errors) == 2 and verdicts(tables, 1)["d"] == "failed"
    assert [label for label, verdict in verdicts(tables, 1).items() if verdict == GOES_ON] == ["b", "c"]
    shown = printed(search_table(tables))
    assert "failed: ValueError: no" in " ".join(shown.split()) or "failed" in shown
    html = page(SuiteResult("", "search", tables)).html()
    assert "table-search" in html and "failed: ValueError: no" in html


def test_a_search_in_which_none_recalls_ends(tmp_path, both):
    tables, _ = halve(both, (Rung(1, 1, 0.5, floor=0.95), Rung(2, 1, 0.0)), ["fox"], Trainer(tmp_path))
    assert {table.rung for table in tables} == {1}


def test_a_rung_says_what_it_must_be():
    with pytest.raises(ValueError, match="keep must be from 0 to 1, got 2"):
        Rung(1, 1, 2)
    with pytest.raises(ValueError, match="times must be at least 1"):
        Rung(0, 1, 0.5)


@pytest.mark.parametrize("preset", RUNGS)
def test_every_rung_is_longer_and_has_the_references(preset):
    rungs = RUNGS[preset]
    assert all(one.times < two.times and one.seeds <= two.seeds for one, two in pairwise(rungs))
    assert rungs[-1].seeds >= 3
    for planned in plan("search", preset):
        assert set(REFERENCES) < set(planned.rows)


def test_the_shell_searches_and_prints_one_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    arguments = ["--mixers", "2mamba,fox", "--steps", "2", "--learning-rates", "0.001", "--jobs", "1"]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["suite", "search", *arguments, "--output", str(tmp_path)])
        assert ended.value.code == 0
    captured = capsys.readouterr()
    assert "All candidates" in captured.out and "reference" in captured.out
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["suite"] == "search" and results["tables"][0]["rows"][0]["verdict"] == "goes on"
    assert (tmp_path / "eval.html").is_file()
    assert build([tmp_path]).html().count('id="table-search"') == 1
