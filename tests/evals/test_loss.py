"""Text in a suite: parts apart, batches paired, and a loss of which less is better everywhere."""

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from maclaurin.data.tasks.text import fingerprint_of
from maclaurin.evals.cells import Problem, Row
from maclaurin.evals.learn import Outcome, Score, _stream, learn
from maclaurin.evals.page import headline, page
from maclaurin.evals.parts import training_part, validation_part
from maclaurin.evals.results import ResultTable, SuiteResult
from maclaurin.evals.runner import save
from maclaurin.evals.summary import loss_interval, summary
from maclaurin.evals.tables import result_table
from tests.evals.helpers import TINY, cell, experiment, outcome, printed


@pytest.fixture
def text(tmp_path, monkeypatch):
    """Train and test problems of a small folder."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.txt").write_text(f"{number} says: " + "ab" * 40)
    problem = Problem("text", {"length": 32, "corpus": str(folder)})
    return (problem,), (replace(problem, options={**problem.options, "split": "test"}),)


def losses(value, loss, std=0.5):
    score = Score(value, 0.0, 100, 32, 8, (), loss, std)
    return Outcome(value, (score,), 100, 4, False, 1.0, loss)


def test_a_text_is_trained_validated_and_tested_on_three_parts(text):
    train, test = text
    parts = [training_part(train[0].task()), validation_part(train[0].task()), test[0].task()]
    assert [part.split for part in parts] == ["train", "validation", "test"]
    found = learn(cell("2mamba", 1e-2, setting=replace(TINY, steps=60, batch=8), train=train, test=test))
    (score,) = found.scores
    assert 0 < score.loss < 3 < math.log(257)  # it has learned that a and b take turns
    assert found.validation_loss == pytest.approx(score.loss, abs=0.3) and found.validation_loss != score.loss
    assert score.loss_std > 0 and score.examples == 10 and score.length == 32


def test_a_text_that_diverges_is_as_bad_as_guessing(text):
    train, test = text
    found = learn(cell("linear", 1e30, train=train, test=test))
    assert found.diverged
    assert found.validation_loss == found.scores[0].loss == pytest.approx(math.log(257)) and found.scores[0].loss_std == 0


def test_all_models_of_a_seed_see_the_same_batches(text):
    train, test = text
    first, second, other = (
        [batch.tokens for batch in islice(_stream(one, [problem.task() for problem in train]), 5)]
        for one in (
            cell("softmax", 1e-3, train=train, test=test),
            cell("2mamba", 1e-2, train=train, test=test),
            cell("softmax", 1e-3, 1, train=train, test=test),
        )
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_the_lower_loss_wins(tmp_path, text):
    """The learning rate, the headline and the comparison by seeds, whatever the accuracies say."""
    train, test = text
    tiny = experiment(train=train, test=test, axis="", metric="loss", reference=None, seeds=2, against={"linear": "softmax"})
    found = {("softmax", 1e-3): (0.9, 3.0), ("softmax", 1e-2): (0.1, 2.0)}
    found |= {("linear", 1e-3): (0.9, 1.5), ("linear", 1e-2): (0.1, 1.75)}
    for one in tiny.cells(2):
        accuracy, loss = found[one.label, one.learning_rate]
        save(one, losses(accuracy, loss + 0.25 * one.seed), tmp_path)
    table = ResultTable.from_json(json.loads(json.dumps(summary(tiny, tmp_path, {}).to_json())))
    softmax, linear = table.rows
    assert (softmax.learning_rate, linear.learning_rate) == (1e-2, 1e-3)
    assert [tried.value for tried in softmax.validation] == [3.125, 2.125]
    assert softmax.points[0].value == softmax.points[0].loss == 2.125 and softmax.points[0].accuracy == 0.1
    assert (linear.against.difference, linear.against.seeds_above) == (-0.5, 0)
    assert headline(table) == "tiny: from softmax 2.125 to linear 1.625"
    shown = printed(result_table(table))
    for word in ("nats per byte", "*0.01 (2.125)", "2.125", "-0.500 to softmax", "below in 2 of 2"):
        assert word in shown, word
    html = page(SuiteResult("", "tiny", [table])).html()
    assert "tiny-test" in html and "nats per byte" in html


def test_the_interval_of_a_loss_is_over_examples_and_seeds():
    low, high = loss_interval([2.0], [0.5], 100)
    assert (low, high) == pytest.approx((2 - 0.098, 2 + 0.098), abs=1e-3)
    low, high = loss_interval([1.0, 3.0], [0.5, 0.5], 100)
    assert low < 1.1 and high > 2.9


def test_results_from_before_losses_were_counted_are_read(tmp_path):
    old = outcome(0.5).to_json()
    assert "validation_loss" not in old and "loss" not in old["scores"][0]
    assert Outcome.from_json(old) == Outcome.from_json(json.loads(json.dumps(old)))
    tiny = experiment(reference=None)
    for one in tiny.cells(1):
        save(one, outcome(0.5), tmp_path)
    table = summary(tiny, tmp_path, {})
    assert table.rows[0].points[0].loss is None and "loss" not in table.to_json()["rows"][0]["points"][0]
    assert cell().key == cell(row=Row(("softmax",))).key != cell(row=Row(("softmax",), heads=1)).key


def test_a_changed_corpus_is_another_cell(text):
    train, test = text
    before = cell("2mamba", 1e-2, train=train, test=test).key
    assert cell("2mamba", 1e-2, train=train, test=test).key == before
    (Path(train[0].options["corpus"]) / "0.txt").write_text("something else")
    fingerprint_of.cache_clear()  # a process reads a corpus once
    assert cell("2mamba", 1e-2, train=train, test=test).key != before
