"""Suites in the report page: found below a folder, drawn beside runs, named when they are broken."""

import json

import pytest

from maclaurin.report import build


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
    assert page.headline == "longer at length 256: from linear 0.070 to softmax 0.750"


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
