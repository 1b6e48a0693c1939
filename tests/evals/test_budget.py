"""Rows of a table have the same number of parameters, in the plan and in the models that are trained."""

from dataclasses import replace

import pytest

from maclaurin.evals.budget import matched, parameters
from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.learn import learn
from maclaurin.evals.planning import plan

MQAR = Problem("mqar", {"length": 16, "pairs": 2, "vocab_size": 16})
SOFTMAX = Row(("softmax",))
WIDE_KEYS = Row(("linear",), {"linear": {"key_dim": 16}})


@pytest.mark.parametrize("suite", ["recall", "needle", "lra", "vision", "swax", "track"])
def test_rows_are_as_large_as_the_reference(suite):
    if suite == "vision":
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    for planned in plan(suite):
        task, settings = planned.train[0].task(), planned.settings()
        goal = parameters(planned.reference, planned.setting, task)
        unmatched = [
            label for label, row in planned.rows.items() if abs(parameters(row, settings[label], task) / goal - 1) > 0.01
        ]
        assert unmatched == []


@pytest.mark.parametrize("model", ["language", "classifier", "vision"])
def test_the_width_is_the_nearest(model):
    setting = Setting(model, width=32, heads=4, layers=2, inner=200)
    problem = MQAR
    if model == "vision":
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
        problem = Problem("digits")
    task = problem.task()
    found = matched(WIDE_KEYS, setting, task, SOFTMAX)
    assert found.inner < setting.inner and replace(found, inner=200) == setting
    goal = parameters(SOFTMAX, setting, task)
    off = {
        inner: abs(parameters(WIDE_KEYS, replace(setting, inner=inner), task) - goal)
        for inner in range(found.inner - 3, found.inner + 4)
    }
    assert min(off, key=off.get) == found.inner
    assert matched(SOFTMAX, setting, task, SOFTMAX) == setting


def test_a_mixer_that_is_too_large_keeps_the_narrowest_mlp():
    setting = Setting(width=16, heads=2, inner=2)
    assert matched(WIDE_KEYS, setting, MQAR.task(), SOFTMAX).inner == 1


def test_cells_are_trained_at_the_matched_size():
    (planned,) = plan("recall", mixers=["softmax", "2mamba"], steps=1, learning_rates=[1e-3])
    planned = replace(planned, train=(MQAR,), test=(MQAR,), setting=replace(planned.setting, examples=2))
    softmax, second = (learn(cell).parameters for cell in planned.cells(1))
    assert second == pytest.approx(softmax, rel=0.01)
    softmax, second = (learn(cell).parameters for cell in replace(planned, reference=None).cells(1))
    assert second > 1.01 * softmax
    assert {cell.setting for cell in replace(planned, reference=None).cells(1)} == {planned.setting}
