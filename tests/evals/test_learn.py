"""One cell: what it learns, what it counts, and that it is the same again."""

import itertools
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from maclaurin.evals import learn as learning
from maclaurin.evals.cells import Problem, Row
from maclaurin.evals.learn import learn, warmup_and_cosine
from maclaurin.evals.models import build
from maclaurin.evals.parts import training_part, validation_part
from tests.evals.helpers import TEST, TINY, TRAIN, cell, without_time


def test_the_learning_rate_rises_then_falls():
    factors = [warmup_and_cosine(step, 100) for step in range(100)]
    assert factors[0] == 0.1 and factors[9] == 1.0 and factors[10] == 1.0
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert factors[-1] == pytest.approx(0.01, abs=1e-3)


def test_the_same_cell_gives_the_same_numbers():
    first, second = learn(cell()), learn(cell())
    assert without_time(first) == without_time(second)
    assert without_time(first) != without_time(learn(cell(seed=1)))


def test_a_cell_learns_what_it_is_asked():
    """Two keys and two values: answers stand at the query, not one token later."""
    problem = (Problem("mqar", {"length": 8, "pairs": 1, "vocab_size": 6}),)
    setting = replace(TINY, width=32, layers=2, inner=32, steps=400, batch=32, stop_at=0.99, examples=100)
    outcome = learn(cell("2mamba", 1e-2, setting=setting, train=problem, test=problem))
    assert outcome.scores[0].accuracy > 0.95
    assert outcome.steps < 400  # it stopped when it could
    assert sum(bucket[3] for bucket in outcome.scores[0].by_distance) == 100


def test_distances_count_every_answer():
    outcome = learn(cell())
    for score, pairs in zip(outcome.scores, (2, 4), strict=True):
        assert sum(asked for *_, asked in score.by_distance) == 10 * pairs
        assert sum(right for *_, right, _ in score.by_distance) == pytest.approx(score.accuracy * 10 * pairs)


def test_a_cell_that_diverges_answers_nothing():
    outcome = learn(cell("linear", 1e30))
    assert outcome.diverged and outcome.steps <= 4
    assert outcome.validation == 0 and all(score.accuracy == score.exact == 0 for score in outcome.scores)


def test_sequences_images_and_windows():
    listops = (Problem("listops", {"longest": 32, "shortest": 4, "depth": 3, "arguments": 3}),)
    outcome = learn(cell("gla", setting=replace(TINY, model="classifier"), train=listops, test=listops))
    assert outcome.scores[0].length == 32 and outcome.scores[0].state_bytes > 0
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    digits = (Problem("digits"),), (Problem("digits", {"split": "test"}),)
    outcome = learn(cell("inline", setting=replace(TINY, model="vision"), train=digits[0], test=digits[1]))
    assert outcome.scores[0].examples == 359 and outcome.scores[0].state_bytes is None
    hybrid = Row(("mlstm", "sliding-window"), {"sliding-window": {"window": 8}}, short_window=2, test_window=4)
    wide = replace(hybrid, test_window=16)
    setting = replace(TINY, layers=2)
    narrow, wide = (learn(cell("hybrid", setting=setting, row=row)) for row in (hybrid, wide))
    assert narrow.parameters == wide.parameters
    assert narrow.scores[0].state_bytes < wide.scores[0].state_bytes


def test_validation_examples_are_no_training_examples():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    task = Problem("digits").task()
    train, validation = training_part(task), validation_part(task)
    assert len(train) + len(validation) == len(task)
    count = len(validation)
    seen = {tuple(row.tolist()) for row in train.sample(len(train), 0).inputs.flatten(1)}
    assert sum(tuple(row.tolist()) in seen for row in validation.sample(count, 0).inputs.flatten(1)) == 0


def test_with_tasks_for_validation_alone_the_weights_of_the_best_look_are_kept(monkeypatch):
    judged = replace(cell(setting=replace(TINY, steps=40)), validate=TEST[1:])
    looks, shares = [], itertools.cycle([0.2, 0.1, 0.6, 0.9, 0.3])  # a look every other step: the fourth is the first best

    def look(model, tasks, examples):
        assert [task.pairs for task in tasks] == [4] and not model.training
        looks.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(shares), 0.0

    monkeypatch.setattr(learning, "_validation", look)

    def weights_after(one):
        looks.clear()
        torch.manual_seed(0)
        tasks = [problem.task() for problem in one.train]
        model = build(one.row, one.setting, tasks[0])
        assert learning.train(model, one, tasks) == (one.setting.steps, False)
        return model.state_dict()

    kept = weights_after(judged)
    assert len(looks) == 20
    assert [all(torch.equal(kept[name], seen[name]) for name in kept) for seen in looks] == [n == 3 for n in range(20)]
    last = weights_after(replace(judged, validate=()))
    assert looks == [] and not torch.equal(last["model.lm_head.weight"], kept["model.lm_head.weight"])


def test_seconds_are_of_the_processor():
    """Waiting, as for a core that others use, is not counted."""
    setting = replace(TINY, steps=1, stop_at=None)
    assert learn(cell(setting=setting), lambda step, loss: time.sleep(1.0)).seconds < 0.9


def test_embeddings_start_as_large_as_the_setting_says_and_the_head_does_not():
    task = TRAIN[0].task()
    torch.manual_seed(0)
    usual = build(Row(("softmax",)), TINY, task).model
    torch.manual_seed(0)
    large = build(Row(("softmax",)), replace(TINY, embedding_std=0.5), task).model
    torch.testing.assert_close(large.model.embed_tokens.weight, 25 * usual.model.embed_tokens.weight)
    assert torch.equal(large.lm_head.weight, usual.lm_head.weight)
    with pytest.raises(ValueError, match="embedding_std must be above 0"):
        replace(TINY, embedding_std=0.0)
    assert cell(setting=replace(TINY, embedding_std=0.5)).key != cell().key


def test_smoothed_labels_leave_a_loss_and_are_another_cell():
    losses = {}
    for smoothing in (0.0, 0.5):
        one = cell(setting=replace(TINY, label_smoothing=smoothing, steps=20))
        losses[smoothing] = []
        learn(one, lambda step, loss, kept=losses[smoothing]: kept.append(loss))
    assert losses[0.0] != losses[0.5]
    assert cell(setting=replace(TINY, label_smoothing=0.5)).key != cell().key
    with pytest.raises(ValueError, match="label_smoothing must be at least 0 and below 1"):
        replace(TINY, label_smoothing=1.0)
