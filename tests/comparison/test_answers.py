"""Recall, costs and the answers in words."""

import dataclasses
import json

import pytest

from maclaurin.comparison import answers, recall
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.runner import save
from maclaurin.evals.summary import summary
from maclaurin.training import Recipe
from maclaurin.training.contenders import chosen
from maclaurin.training.statistics import Figures, Recall, ranked, standing

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("budget", recall.TASKS)
def test_every_contender_recalls_in_the_block_of_the_comparison(budget):
    contenders = chosen("", "gated")
    asked = recall.experiment(contenders, budget)
    assert {name: (row.mixers, row.options) for name, row in asked.rows.items()} == {
        name: (own.mixers, own.options) for name, own in contenders.items()
    }
    assert [problem.options["pairs"] for problem in asked.test] == list(recall.TASKS[budget].pairs)


def test_steps_of_recall_are_those_asked_for():
    contenders = chosen("softmax", "gated")
    assert recall.experiment(contenders, "hour", 7).setting.steps == 7
    assert recall.experiment(contenders, "hour").setting == recall.TASKS["hour"].setting
    with pytest.raises(ValueError, match="recall_steps must be"):
        recall.experiment(contenders, "hour", 0)


def test_recall_is_that_of_the_table(tmp_path):
    asked = dataclasses.replace(recall.experiment(chosen("softmax,linear", "gated"), "minutes"), seeds=1)
    for cell in asked.cells(1):
        right = 0.9 if cell.label == "softmax" else 0.05
        scores = [Score(right, right, 100, problem.options["length"], 4096, []) for problem in cell.test]
        save(cell, Outcome(right * cell.learning_rate, scores, 1000, 10, False, 1.0), tmp_path)
    found = recall.figures(summary(asked, tmp_path, {}))
    assert found["softmax"].accuracy == (0.9,) * 3 and found["softmax"].learning_rate == max(asked.learning_rates)
    assert found["linear"].chance == tuple(1 / pairs for pairs in found["linear"].pairs)
    assert Recall.from_json(json.loads(json.dumps(found["linear"].to_json()))).checked() == found["linear"]


def test_decoding_is_measured_for_every_layer_and_leaves_the_threads_as_they_were(monkeypatch):
    import torch

    from maclaurin.comparison import costs

    monkeypatch.setattr(costs, "CONTEXT", 64)
    monkeypatch.setattr(costs, "STEPS", 2)
    before = torch.get_num_threads()
    found = costs.decoding({name: Recipe(mixer=name, **SMALL) for name in ("linear", "2mamba", "softmax")}, seconds=0.01)
    assert set(found) == {"linear", "2mamba", "softmax"} and all(0 < one.low <= one.median for one in found.values())
    assert torch.get_num_threads() == before


def rows(**losses):
    found = []
    for name, own in losses.items():
        figures = [Figures(loss, 1000.0, 1, None, seed) for seed, loss in enumerate(own)]
        found.append(standing(name, Recipe(mixer=name, **SMALL), figures))
    return ranked(found)


def with_recall(row, accuracy, low, high):
    return dataclasses.replace(row, recall=Recall((16,), (accuracy,), (low,), (high,), (1 / 16,), 10, 1e-3), decode_ms=2.0)


def test_each_question_has_an_answer_and_level_is_said():
    found = rows(softmax=(2.0, 2.1, 2.2), linear=(2.01, 2.09, 2.21), gla=(3.0, 3.1, 3.2))
    text, constant, cost, seeds = answers.sentences(found)
    assert text.startswith("Text: softmax has the lowest loss, 2.1000") and "has 0: linear (+0.0033" in text
    assert cost.startswith("Cost: ") and "With 3 seeds" not in cost and seeds.startswith("With 3 seeds")
    assert answers.short(found) == ""  # recall was not asked for
    found = [with_recall(found[0], 0.9, 0.85, 0.95), with_recall(found[1], 0.05, 0.03, 0.08), found[2]]
    assert "lowest loss of those whose state does not grow; against softmax +0.0033, " in constant and "(level)." in constant
    said = answers.sentences(found)[2]
    assert said.startswith("Recall: softmax answers 0.900 of 16 pairs; no other is level with it. linear did no better")
    assert answers.short(found).startswith("Text: softmax (level: linear). Recall: softmax. Smallest state: ")


def test_the_best_constant_state_is_compared_with_every_one_that_grows():
    found = rows(softmax=(2.0, 2.1, 2.2), fox=(1.0, 1.1, 1.21), linear=(1.5, 1.6, 1.7), gla=(3.0, 3.1, 3.2))
    said = next(text for text in answers.sentences(found) if text.startswith("Constant state: linear has"))
    assert "against fox +0.4967, " in said and "(behind) and softmax -0.5000, -0.5000 to -0.5000 (ahead)." in said
    assert not any(text.startswith("Constant") for text in answers.sentences(rows(linear=(1.0, 2.0), gla=(1.0, 2.0))))


@pytest.mark.parametrize(
    ("linear", "gla", "says"),
    [
        (0.99, 0.99, "It recalls 16 pairs as well as they do."),
        (
            0.5,
            0.99,
            "Of those that also recall 16 pairs as well as one whose state grows, gla has the lowest; against",
        ),
        (0.5, 0.5, "None of them recalls 16 pairs as well as those whose state grows."),
    ],
)
def test_the_best_constant_state_that_also_recalls_is_named(linear, gla, says):
    accuracies = {"softmax": 0.98, "linear": linear, "gla": gla}
    found = rows(softmax=(2.0, 2.1, 2.2), linear=(1.5, 1.6, 1.7), gla=(3.0, 3.1, 3.2))
    recalled = [with_recall(row, accuracies[row.name], accuracies[row.name] - 0.01, accuracies[row.name]) for row in found]
    assert says in next(text for text in answers.sentences(recalled) if text.startswith("Constant state: linear"))


def test_one_seed_says_so():
    assert "One seed says nothing about chance" in answers.sentences(rows(softmax=(2.0,), linear=(2.1,)))[-1]
    assert answers.sentences(rows(softmax=(2.0,))) == []
