"""The curve of recovery: validation after every doubling of the steps, on the page, and the same after an interruption."""

import json

import pytest

from maclaurin.convert import run
from maclaurin.convert.page import section
from maclaurin.convert.result import Figures
from maclaurin.convert.run import convert
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
