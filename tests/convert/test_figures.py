"""Figures and plans of conversions as files that anybody may have written: shown, done again, or named in a sentence."""

import json
import re

import pytest

from maclaurin.convert.result import Figures
from maclaurin.convert.run import _load_figures
from maclaurin.convert.times import Times, times_of
from maclaurin.report import build
from maclaurin.training.conversion import Plan

STAGE = {
    "rows": 3,
    "teacher_loss": 1.0,
    "loss": 2.0,
    "kl": 0.1,
    "same_token": 0.5,
    "layers": [{"layer": 0, "error": 0.1, "kl": 0.2}],
}
COST = {"length": 64, "ratio": 0.5, "source_ms": 1.0, "converted_ms": 2.0, "source_bytes": 10, "converted_bytes": 20}
PLAN = {"source": "a/<b>", "output": "out", "student": "2mamba", "layers": "", "keep_softmax": ""}
WHOLE = {"plan": PLAN, "kind": "decoder", "stages": {"untrained": STAGE, "transfer": STAGE}, "cost": [COST]}
WRONG = (None, 3, "x", [], [3], {}, {"a": 1}, float("nan"), 10**400, [[[]]])
DEEP = "[" * 50_000 + "]" * 50_000


def write(folder, figures):
    folder.mkdir(exist_ok=True)
    (folder / "conversion.json").write_text(json.dumps(PLAN))
    (folder / "evaluation.json").write_text(figures if isinstance(figures, str) else json.dumps(figures))


@pytest.mark.parametrize(
    "path", ["plan", "plan source", "stages", "stages untrained", "stages untrained layers", "cost", "cost 0"]
)
def test_one_bad_conversion_leaves_the_others_and_is_named(tmp_path, capsys, path):
    write(tmp_path / "good", WHOLE)
    for value in WRONG:
        figures = json.loads(json.dumps(WHOLE))
        *parents, last = (int(key) if key.isdigit() else key for key in path.split())
        place = figures
        for key in parents:
            place = place[key]
        place[last] = value
        write(tmp_path / "bad", figures)
        page = build([tmp_path], measure=False).html()
        assert "2mamba" in page and "<b>" not in page.split("<main>")[1].split("</main>")[0]
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) <= 1 and all(str(tmp_path / "bad" / "evaluation.json") in line for line in lines)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stages": {"untrained": STAGE | {"loss": "x"}}}, "stages.untrained.loss must be a number, got 'x'"),
        ({"stages": {"untrained": {"cosine": 1.0}}}, "stages.untrained.rows is missing"),
        ({"stages": {"transfer": STAGE}}, "stages must be some of untrained, transfer, recover, the first among them"),
        ({"stages": {"untrained": STAGE, "transfer": STAGE | {"layers": []}}}, "stages must all have the same figures"),
        ({"cost": [COST | {"source_bytes": 1.5}]}, "cost[0].source_bytes must be a whole number, got 1.5"),
        ({"plan": PLAN | {"student": "magic"}}, "student must be one of"),
    ],
)
def test_what_is_wrong_with_a_conversion_is_said_with_its_file_and_field(tmp_path, change, sentence):
    write(tmp_path, WHOLE | change)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'evaluation.json'} cannot be read: {sentence}")):
        build([tmp_path], measure=False)


def test_figures_are_written_as_they_were_read():
    assert Figures.from_json(WHOLE).to_json() == WHOLE | {"plan": Plan.from_json(PLAN).to_json()}


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", DEEP, '{"stages": {"untrained": {}}}', '{"stages": 3}', '{"stages": {"a": 1}}']
)
def test_damaged_figures_are_measured_again(tmp_path, text):
    write(tmp_path, text)
    found = _load_figures(Plan(source="a", output=str(tmp_path)), "decoder")
    assert not found.stages and found.plan.source == PLAN["source"]


@pytest.mark.parametrize("text", ["{", "[]", "3", DEEP])
def test_a_damaged_plan_is_named(tmp_path, text):
    (tmp_path / "conversion.json").write_text(text)
    with pytest.raises(ValueError, match=r"conversion\.json"):
        Plan(source="a", output=str(tmp_path)).save()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"seconds": "x", "cpu_seconds": 1}', DEEP])
def test_damaged_times_are_counted_from_now_on(tmp_path, text):
    (tmp_path / "times.json").write_text(text)
    assert times_of(tmp_path) == Times(0.0, 0.0)


def test_the_headline_of_a_conversion_gives_losses_and_what_it_trained_on(tmp_path):
    stages = {"untrained": STAGE | {"loss": 4.5}, "transfer": STAGE | {"loss": 2.5}, "recover": STAGE | {"loss": 1.35}}
    write(tmp_path, WHOLE | {"plan": PLAN | {"source": "runs/softmax", "transfer_steps": 40}, "stages": stages})
    losses = "loss 1.3500, the source 1.0000, untrained 4.5000 (90% of the gap closed)"
    assert build([tmp_path], measure=False).headline == f"softmax as 2mamba: {losses} after 540 steps on stdlib"
    write(tmp_path, WHOLE | {"plan": PLAN | {"source": "runs/softmax"}, "stages": {"untrained": STAGE}})
    assert build([tmp_path], measure=False).headline == "softmax as 2mamba: loss 2.0000, the source 1.0000; not trained yet"


def test_times_of_a_conversion_have_their_quartiles_and_the_load(tmp_path):
    write(tmp_path, WHOLE | {"cost": [COST | {"source_quartiles": [0.9, 1.4], "converted_quartiles": [2, 3], "load": 5.5}]})
    page = build([tmp_path], measure=False)
    (chart,) = page.charts()
    assert chart.caption.endswith("medians and quartiles at a load of 5.5 to 5.5.")
    assert [list(trace.error_y.array) for trace in chart.figure.data] == [[pytest.approx(0.0004)], [pytest.approx(0.001)]]
    assert "2 ms<small>2 to 3</small>" in page.html()
