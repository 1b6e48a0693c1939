"""The frame of the lab: claims decided by numbers, results that are kept and drawn, flags of the shell."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import pytest

from maclaurin.cli import main
from maclaurin.lab import EXPERIMENTS, claims
from maclaurin.lab.page import chart, page
from maclaurin.lab.result import Curve, Grid, Matrix, Plot, Result
from maclaurin.lab.run import found_in, keep, run_one
from maclaurin.page.png import on_paper
from maclaurin.report import build


def small(measured: float = 1.0) -> Result:
    return Result(
        "series",
        "A small one",
        {"seed": 3, "lengths": [1, 2]},
        [claims.near("one", "it is one", measured, 1.0, 0.1), claims.not_applicable("none", "it has no keys", "no keys")],
        [Grid("figures", ("name", "value"), [("a", 1.0), ("b", None)])],
        [
            Plot("curve", "A curve.", "x", "y", [Curve("a", [1, 2], [3.0, 4.0], [2.0, 3.0], [4.0, 5.0])], log_x=True),
            Matrix("square", "A matrix.", "column", "row", [[1.0, 2.0], [3.0, 4.0]]),
        ],
        ["It is only a test."],
    )


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        (claims.near("k", "t", 1.05, 1.0, 0.1), True),
        (claims.near("k", "t", 1.2, 1.0, 0.1), False),
        (claims.near("k", "t", math.nan, 1.0, 0.1), False),
        (claims.near_relative("k", "t", 105, 100, 0.1), True),
        (claims.near_relative("k", "t", 120, 100, 0.1), False),
        (claims.near_relative("k", "t", -95, -100, 0.1), True),
        (claims.between("k", "t", 0.5, 0.4, 0.6), True),
        (claims.between("k", "t", 0.7, 0.4, 0.6), False),
        (claims.at_most("k", "t", 2, 1), False),
        (claims.at_most("k", "t", math.nan, 1), False),
        (claims.at_least("k", "t", 2, 1), True),
        (claims.at_least("k", "t", math.nan, 1), False),
    ],
)
def test_the_number_decides(claim: claims.Claim, held: bool) -> None:
    assert claim.held is held


def test_one_false_claim_is_enough() -> None:
    assert small().held
    assert not small(2.0).held
    assert "NOT held" in small(2.0).table()


def test_a_result_is_kept_and_read_again(tmp_path) -> None:
    keep(small(), tmp_path / "below")
    (read,) = found_in(tmp_path, pytest.fail)
    assert read.to_json() == small().to_json()
    assert read.table() == small().table()


def test_the_table_says_everything() -> None:
    text = small().table()
    for piece in ("A small one", "seed 3", "it is one", "held", "does not apply", "figures", "It is only a test."):
        assert piece in text


def test_figures_state_settings_and_seed() -> None:
    charts = small().plot()
    assert [chart.key for chart in charts] == ["series-curve", "series-square"]
    assert all("seed 3" in chart.caption for chart in charts)
    html = page([small()]).html()
    assert "A small one" in html and "lab-claims" in html


def test_a_page_names_what_did_not_hold() -> None:
    several = page([small(), small(2.0)])
    assert several.headline == "1 of 2 claims held" and several.sections[0].intro == "NOT held: series one: it is one."
    alone = page([small()])
    assert alone.headline == "A small one" and [section.title for section in alone.sections][-1] == "Claims"
    assert alone.sections[-1].intro == ""


def test_a_prediction_has_the_colour_of_what_it_predicts_and_no_legend() -> None:
    line, prediction, other = (
        Curve(name, [1, 2], [1.0, 2.0], dashed=dashed) for name, dashed in (("a", 0), ("a", 1), ("b", 1))
    )
    figure = chart("series", Plot("p", "", "x", "y", [line, prediction, other]), "").figure
    assert [trace.showlegend for trace in figure.data] == [True, False, True]
    assert figure.data[0].line.color == figure.data[1].line.color != figure.data[2].line.color
    assert list(figure.layout.xaxis.tickvals) == [1, 2]


def test_a_file_says_its_settings_and_its_seed() -> None:
    title = on_paper(small().plot()[0]).layout.title.text
    assert "A curve." in title and "lengths 1 2" in title and "seed 3" in title


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", "[" * 50_000 + "]" * 50_000, '{"name": 3}', '{"plots": [3], "claims": [], "grids": []}'],
    ids=lambda text: text[:12],
)
def test_a_file_that_is_no_result_is_named_and_the_rest_is_shown(tmp_path, capsys, text) -> None:
    keep(small(), tmp_path)
    (tmp_path / "bad.lab.json").write_text(text)
    with pytest.raises(ValueError, match=r"^this result of the lab cannot be read"):
        Result.from_json(text)
    page = build([tmp_path], measure=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.lab.json" in line and "bad.lab.json" in page.html()
    assert [chart.key for chart in page.charts()] == ["series-curve", "series-square"]


@pytest.mark.parametrize("field", ["name", "title", "settings", "claims", "grids", "plots", "notes", "seconds"])
def test_a_field_of_another_kind_never_stops_the_page(tmp_path, capsys, field) -> None:
    keep(small(), tmp_path)
    for value in (3, "x", None, [3], {"a": 1}, float("nan"), [[1]]):
        (tmp_path / "bad.lab.json").write_text(json.dumps(json.loads(small().to_json()) | {field: value}))
        assert "A small one" in build([tmp_path], measure=False).html()
        assert len(capsys.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize("name", [*EXPERIMENTS, "card"])
def test_every_experiment_explains_its_flags_in_the_shell(capsys, name) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["lab", name, "--help"])
    assert exit.value.code == 0 and "--seed" in capsys.readouterr().out


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Commands of the lab whose experiments cost nothing, and the files that they leave."""
    monkeypatch.setattr("maclaurin.lab.run.run_one", lambda name, options: dataclasses.replace(small(), name=name))
    monkeypatch.setattr("maclaurin.lab.run.run_all", lambda *_: iter([small(), dataclasses.replace(small(), name="memory")]))

    def run(*arguments: str) -> set[str]:
        with pytest.raises(SystemExit, match="0"):
            main(["lab", *arguments, "--output", str(tmp_path)])
        return {path.name for path in tmp_path.iterdir()}

    return run


def test_pages_of_experiments_do_not_overwrite_each_other(shell, tmp_path, capsys) -> None:
    assert shell("rotation") == {"rotation.lab.json", "rotation.html"}
    before = (tmp_path / "rotation.html").read_bytes()
    assert shell("memory") >= {"rotation.html", "memory.html"}
    assert str(tmp_path / "memory.html") in capsys.readouterr().out
    assert shell("all") >= {"rotation.html", "memory.html", "lab.html"}
    assert (tmp_path / "rotation.html").read_bytes() == before


def test_core_seconds_are_cpu_time(monkeypatch) -> None:
    """An experiment that waits for others takes none; the clock on the wall would say half a second."""

    def waits() -> Result:
        time.sleep(0.5)
        return small()

    monkeypatch.setattr("maclaurin.lab.run.function_of", lambda name: waits)
    assert run_one("series", {}).seconds < 0.25


def test_all_says_which_experiment_has_ended(shell, capsys) -> None:
    shell("all")
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("9 experiments, ")
    assert said[1:] == ["[1/9] series: 0 core-seconds", "[2/9] memory: 0 core-seconds"]


def test_without_plotly_there_is_a_table_and_no_page(shell, capsys, monkeypatch) -> None:
    monkeypatch.setattr("maclaurin.page.missing", lambda: "a report needs plotly: pip install 'maclaurin[report]'")
    assert shell("rotation") == {"rotation.lab.json"}
    printed = capsys.readouterr()
    assert "it is one" in printed.out and "no page: a report needs plotly" in printed.err


@pytest.mark.parametrize("name", ["rotation", "all"])
def test_ctrl_c_says_what_is_there_and_how_to_start_again(tmp_path, monkeypatch, capsys, name) -> None:
    def interrupted(*_):
        raise KeyboardInterrupt

    for work in ("run_one", "run_all"):
        monkeypatch.setattr(f"maclaurin.lab.run.{work}", interrupted)
    monkeypatch.setattr("sys.argv", ["maclaurin", "lab", name, "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main(["lab", name, "--output", str(tmp_path)])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 130 and said.startswith("maclaurin: stopped; ")
    assert said.endswith(f"lab {name} --output {tmp_path}") and ("0 of 9 experiments" in said) == (name == "all")
