"""The curve of recovery: validation after every doubling of the steps, on the page, and the same after an interruption."""

import dataclasses
import json
import math

import pytest

from maclaurin.convert import run
from maclaurin.convert.page import section
from maclaurin.convert.result import Figures
from maclaurin.convert.run import convert
from maclaurin.convert.trend import Trend, trend
from tests.convert.test_stages import plan, silent

OPTIONS = {"student": "elu", "num_features": 8, "transfer_steps": 0, "recover_steps": 20, "save_every": 12, "lora": 2}


@pytest.fixture(scope="module")
def figures(source, corpus, tmp_path_factory):
    return convert(plan(source("llama"), corpus, tmp_path_factory.mktemp("curve") / "out", **OPTIONS), silent).figures


def test_a_point_after_every_doubling(figures):
    assert list(figures.curve) == ["8", "16"]
    losses = [figures.untrained.loss, *(point.loss for point in figures.curve.values())]
    assert len(set(losses)) == 3
    assert [name for name, _ in figures.in_order()] == ["untrained", "recover, 8 steps", "recover, 16 steps", "recover"]


def test_it_is_stored_and_shown(figures):
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures
    assert "recover, 16 steps" in section([figures]).html()


def test_an_interruption_changes_no_point(figures, source, corpus, tmp_path, monkeypatch):
    again = plan(source("llama"), corpus, tmp_path / "again", **OPTIONS)
    measured = run.next_token_agreement

    def stopped(*arguments):
        if (tmp_path / "again/recover/checkpoint-12").exists():
            raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(run, "next_token_agreement", stopped)
    with pytest.raises(KeyboardInterrupt):
        convert(again, silent)
    monkeypatch.setattr(run, "next_token_agreement", measured)
    result = convert(again, silent)
    assert result.figures.curve == figures.curve
    assert result.figures.stages["recover"].loss == figures.stages["recover"].loss


@pytest.mark.parametrize(("c", "p"), [(0.9, 0.1), (2.0, 0.5)])
def test_the_trend_of_a_power_is_that_power(c, p):
    found = Trend.of({steps: c * steps**-p for steps in (8, 16, 32, 100)})
    assert found.times_perplexity(1000) == pytest.approx(math.exp(c * 1000**-p))
    assert found.times_perplexity(found.steps_to(1.1)) == pytest.approx(1.1)
    assert f"leaves {2**-p:.0%} of the loss" in str(found)


def test_a_curve_that_does_not_fall_arrives_nowhere():
    assert Trend.of({8: 0.5, 16: 0.5, 32: 0.6}).steps_to(1.1) == math.inf


def test_two_points_are_no_trend(figures):
    end = figures.stages["recover"]
    above = {step: dataclasses.replace(end, loss=end.teacher_loss + nats) for step, nats in (("8", 0.3), ("16", 0.2))}
    stages = figures.stages | {"recover": dataclasses.replace(end, loss=end.teacher_loss + 0.1)}
    assert trend(dataclasses.replace(figures, stages=stages, curve=above)) is not None
    assert trend(dataclasses.replace(figures, stages=stages, curve={"8": above["8"]})) is None
    assert trend(dataclasses.replace(figures, curve=above, stages={"untrained": end})) is None


def test_a_trend_that_hardly_falls_reaches_nothing():
    assert Trend.of({8: 0.5, 16: 0.49999, 32: 0.49998}).steps_to(1.1) == math.inf
