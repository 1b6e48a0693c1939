"""Suites in the report page: found below a folder, drawn beside runs, named when they are broken."""

import json

import pytest

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.page import headline, lead
from maclaurin.report import build
from maclaurin.report import suites as saved
from tests.report.conftest import write_suite


def charts(folder):
    return {chart.key: chart for chart in build([folder], measure=False).charts()}


def test_suites_below_a_folder_are_sections(suites):
    page = build([suites], measure=False, command="maclaurin report results")
    assert [chart.key for chart in page.charts()] == [
        *("longer-length", "longer-distance"),
        *("passkey-length", "passkey-0", "passkey-1", "passkey-2"),
        *("mqar-pairs", "mqar-distance"),
    ]
    text = page.html()
    for words in ("maclaurin suite needle", "maclaurin report results", "MLPs 32 wide", "recall: Recall", "98,304"):
        assert words in text
    assert page.headline == "longer at length 256: from linear 0.070 to softmax 0.750; at chance, 0.250: 2mamba, linear"


def test_curves_say_what_was_measured(suites):
    lines = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in charts(suites)["mqar-pairs"].figure.data}
    assert lines["2mamba"] == {2: 1, 4: 1, 8: 1, 16: 1, 32: 0.75}
    assert lines["linear"][32] == pytest.approx(6 / 32)


def test_only_what_is_beyond_training_is_shaded(suites):
    found = charts(suites)
    (shaded,) = found["longer-length"].figure.layout.shapes
    assert 64 < shaded.x0 < 128 and shaded.x1 > 256
    assert "shaded: beyond training" in found["longer-length"].caption
    assert not found["mqar-pairs"].figure.layout.shapes and "shaded" not in found["mqar-pairs"].caption


def test_a_heat_map_a_row(suites):
    (heat,) = charts(suites)["passkey-2"].figure.data
    assert list(heat.x) == ["64", "128", "256"] and list(heat.y) == ["0", "0.5", "1"]
    assert heat.z[2][0] == 1 and heat.z[0][2] == pytest.approx(6 / 256)


def test_runs_and_suites_share_a_page(comparison, suites):
    page = build([comparison, suites / "recall"], measure=False)
    assert page.headline.startswith("2mamba wins")
    titles = [section.title for section in page.sections]
    assert "recall: Recall" in titles and "Loss curves" in titles
    assert [chart.key for chart in page.charts()][-2:] == ["mqar-pairs", "mqar-distance"]


def test_one_suite_in_two_folders_has_two_names(suites, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    (again / "results.json").write_text((suites / "recall" / "results.json").read_text())
    keys = [chart.key for chart in build([suites / "recall", again, again], measure=False).charts()]
    assert keys == ["mqar-pairs", "mqar-distance", "mqar-2-pairs", "mqar-2-distance"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ('{"suite": "recall", "tables": [{}]}', "other fields"),
        ('{"suite": "a", "tables": [1]}', "other"),
    ],
)
def test_a_broken_suite_is_named(suites, text, problem):
    (suites / "needle" / "results.json").write_text(text)
    page = build([suites], measure=False)
    assert problem in page.html() and str(suites / "needle") in page.html()
    assert "mqar-pairs" in [chart.key for chart in page.charts()]


def test_other_results_are_no_suite(suites):
    (suites / "needle" / "results.json").write_text(json.dumps({"rows": []}))
    assert not any("passkey" in chart.key for chart in build([suites], measure=False).charts())


@pytest.mark.parametrize("value", [3, "x", None, [], {}, float("nan"), 10**400, [[1]]])
@pytest.mark.parametrize("field", ["experiment", "axis", "rows", "train", "setting", "points", "label", "by_distance"])
def test_a_suite_with_a_field_of_another_kind_is_shown_or_named(suites, capsys, field, value):
    file = suites / "recall" / "results.json"
    results = json.loads(file.read_text())
    table = results["tables"][0]
    place = next(part for part in (table, table["rows"][0], table["rows"][0]["points"][0]) if field in part)
    place[field] = value
    file.write_text(json.dumps(results))
    sections_, suites_ = sections_of(suites), capsys.readouterr().err.splitlines()
    assert "longer" in sections_ and len(suites_) <= 1
    assert not suites_ or str(file.parent) in suites_[0]


def sections_of(folder):
    return "".join(section.html() for section in build([folder / "recall", folder / "longer"], measure=False).sections)


def parity(tmp_path, accuracies, seeds=1):
    rows, test = {name: Row((name,)) for name in accuracies}, (Problem("parity", {"length": 64}),)
    setting = Setting(width=16, heads=2, inner=32)
    experiment = Experiment("parity", "Parity", rows, setting, test, test, (1e-3,), seeds=seeds)
    write_suite(tmp_path, experiment, "track", lambda row, own: accuracies[row])
    ((table,),) = (suite.tables for suite in saved.collect([tmp_path]))
    return table


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ({"softmax": 0.5, "2mamba": 0.55}, "parity at test: none of 2 is above chance, 0.500: 0.500 to 0.550"),
        ({"softmax": 0.5, "2mamba": 0.9}, "parity: from softmax 0.500 to 2mamba 0.900; at chance, 0.500: softmax"),
        ({"softmax": 0.85, "2mamba": 0.9}, "parity: all level within their intervals, 0.850 to 0.900"),
        ({"softmax": 0.65, "2mamba": 0.95}, "parity: from softmax 0.650 to 2mamba 0.950"),
    ],
)
def test_what_chance_would_do_as_well_is_not_ranked(tmp_path, accuracies, said):
    table = parity(tmp_path, accuracies)
    assert headline(table) == said.replace(" at test", "")
    chance = [name for name, accuracy in accuracies.items() if accuracy < 0.6]
    shown = build([tmp_path], measure=False).html().split('<table id="table-parity"')[1]
    assert shown.count("chance</small>") == len(chance)


def test_one_seed_is_not_called_several(tmp_path):
    one, two = (parity(tmp_path / str(seeds), {"softmax": 0.9, "linear": 0.5}, seeds) for seeds in (1, 2))
    assert "Each has one seed" in lead([one]) and "bootstrap" not in lead([one])
    assert "bootstrap over seeds" in lead([two]) and "one seed" not in lead([two])
    assert ["pale: each seed" in charts(tmp_path / str(seeds))["parity-test"].caption for seeds in (1, 2)] == [False, True]
