"""From cells to a table and a page: intervals, costs, comparisons, charts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from maclaurin.common.intervals import wilson
from maclaurin.evals.cells import Problem, Row
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.page import page
from maclaurin.evals.results import ResultTable, SuiteResult
from maclaurin.evals.runner import run, save
from maclaurin.evals.summary import bootstrap, interval, summary
from maclaurin.evals.tables import distance_table, result_table
from tests.evals.helpers import TEST, TINY, experiment, outcome, printed


def test_intervals_over_seeds_hold_the_mean_and_are_the_same_again():
    values = [0.2, 0.9, 0.95, 1.0]
    low, high = bootstrap(values)
    assert 0.2 <= low < np.mean(values) < high <= 1.0
    assert bootstrap(values) == (low, high)
    assert interval([0.9], 100) == wilson(0.9, 100)
    assert interval([1.0, 1.0], 50) == wilson(1.0, 100)  # seeds that agree do not make a result certain


def test_the_table_and_the_page_show_what_was_measured(tmp_path):
    tiny = experiment(seeds=2, published={"softmax": "1.000"}, source="a paper")
    errors = run(tiny.cells(2)[:-1], tmp_path, jobs=1)
    table = ResultTable.from_json(json.loads(json.dumps(summary(tiny, tmp_path, errors).to_json())))
    softmax, linear = table.rows
    assert linear.unfinished == 1 and softmax.unfinished == 0
    tried = {entry.learning_rate: entry.accuracy for entry in softmax.validation}
    assert list(tried) == [1e-3, 1e-2] and tried[softmax.learning_rate] == max(tried.values())
    for point in softmax.points:
        assert 0 <= point.low <= point.value <= point.high <= 1
        assert len(point.by_seed) == 2 and point.state_bytes > 0
    text = printed(result_table(table))
    for word in (
        "softmax",
        "linear",
        "2 pairs",
        "4 pairs",
        f"*{softmax.learning_rate:g}",
        "published elsewhere",
        "a paper",
    ):
        assert word in text, word
    html = page(SuiteResult("maclaurin suite", "tiny", [table])).html()
    for word in ("tiny-pairs", "tiny-distance", "table-tiny", "shaded", "a paper"):
        assert word in html


def test_one_test_is_drawn_with_its_seeds(tmp_path):
    tiny = experiment(seeds=2, learning_rates=(1e-3,), axis="", test=TEST[1:], reference=None)
    for one in tiny.cells(2):
        save(one, replace(outcome(0.6 + 0.2 * one.seed), scores=outcome(0.6 + 0.2 * one.seed).scores[1:]), tmp_path)
    drawn = page(SuiteResult("", "tiny", [summary(tiny, tmp_path, {})]))
    (chart,) = [chart for chart in drawn.charts() if chart.key == "tiny-test"]
    seeds, mean, *others = chart.figure.data
    assert list(seeds.x) == [0.6, 0.8] and list(seeds.y) == ["softmax", "softmax"]
    assert list(mean.x) == pytest.approx([0.7]) and mean.error_x.arrayminus[0] > 0.1
    assert [trace.y[0] for trace in others] == ["linear", "linear"]


def test_the_table_says_what_it_cost(tmp_path):
    """All cells count, those of the learning rate that was not chosen, too; what is not done yet does not."""
    tiny = experiment(reference=None, note="Mind the gap.")
    cells = tiny.cells(1)
    for one, seconds in zip(cells[:-1], (30.0, 60.0, 90.0), strict=True):
        save(one, replace(outcome(0.5 + one.learning_rate), steps=7, seconds=seconds), tmp_path)
    table = summary(tiny, tmp_path, {})
    assert (table.cells, table.core_seconds) == (3, 180)
    text = printed(result_table(table))
    html = page(SuiteResult("", "tiny", [table])).html()
    for word in ("cells: 3, in 3.0 core-minutes", "Mind the gap", "core-s per run"):
        assert word in text and word in html, word
    softmax = next(line for line in text.splitlines() if "softmax" in line)
    assert " 7 " in softmax and " 90 " in softmax  # those of the chosen rate


def test_rows_are_compared_seed_by_seed(tmp_path):
    tiny = experiment(seeds=3, learning_rates=(1e-3,), against={"softmax": "linear"}, reference=None)
    shares = {"softmax": (0.9, 0.7, 0.8), "linear": (0.6, 0.75, 0.7)}
    cells = tiny.cells(3)
    for one in cells[:-1]:
        save(one, outcome(shares[one.label][one.seed]), tmp_path)
    softmax, linear = summary(tiny, tmp_path, {}).rows
    assert softmax.against is linear.against is None  # the third pair is not there yet
    save(cells[-1], outcome(shares[cells[-1].label][2]), tmp_path)
    table = summary(tiny, tmp_path, {})
    softmax, linear = table.rows
    assert linear.against is None
    against = softmax.against
    assert against.row == "linear" and against.seeds_above == 2
    assert [against.difference, against.lowest, against.highest] == pytest.approx([0.35 / 3, -0.05, 0.3])
    text = printed(result_table(table))
    assert "+0.117 to linear" in text and "-0.050 … +0.300, above in 2 of 3" in text
    html = page(SuiteResult("", "tiny", [table])).html()
    assert "above in 2 of 3" in html.replace("\N{NO-BREAK SPACE}", " ")
    only = replace(tiny, rows={"softmax": tiny.rows["softmax"]})  # `--mixers softmax`
    assert summary(only, tmp_path, {}).rows[0].against is None


def test_recall_by_distance_is_printed(tmp_path):
    tiny = experiment(learning_rates=(1e-3,), rows={"softmax": Row(("softmax",))})
    assert distance_table(summary(tiny, tmp_path, {})) is None
    (only,) = tiny.cells(1)
    scores = [Score(0.5, 0.5, 4, 16, 8, []), Score(0.5, 0.5, 4, 32, 8, [(2, 4, 3, 4), (16, 32, 1, 8)])]
    save(only, Outcome(0.5, scores, 100, 4, False, 1.0), tmp_path)
    text = printed(distance_table(summary(tiny, tmp_path, {})))
    for word in ("32 tokens", "2–3", "16–31", "0.750", "0.125"):
        assert word in text, word


def test_a_heat_map_for_depth_by_length(tmp_path):
    problems = [Problem("passkey", {"length": length, "depth": depth}) for length in (32, 64) for depth in (0.0, 1.0)]
    train = (Problem("passkey", {"length": 32}),)
    needle = experiment(
        train=train, test=tuple(problems), axis="length", across="depth", metric="exact", learning_rates=(1e-3,)
    )
    needle = replace(needle, setting=replace(TINY, steps=1, batch=1, examples=2), rows={"linear": Row(("linear",))})
    assert run(needle.cells(1), tmp_path, jobs=1) == {}
    drawn = page(SuiteResult("", "needle", [summary(needle, tmp_path, {})]))
    heat = next(chart.figure for chart in drawn.charts() if chart.figure.data[0].type == "heatmap")
    assert list(heat.data[0].x) == ["32", "64"] and list(heat.data[0].y) == ["0", "1"]


def test_a_table_of_nothing(tmp_path):
    table = summary(experiment(), tmp_path, {})
    result_table(table)
    assert "No cell has finished yet" in page(SuiteResult("", "tiny", [table])).html()
