"""State for state: equal parameters, equal blocks, states of many sizes, and the frontier that none is beyond."""

import json

import pytest

from maclaurin.common.pareto import pareto
from maclaurin.evals.budget import parameters
from maclaurin.evals.cells import Row
from maclaurin.evals.learn import Outcome, Score
from maclaurin.evals.models import build
from maclaurin.evals.page import page
from maclaurin.evals.planning import plan
from maclaurin.evals.results import ResultTable, SuiteResult
from maclaurin.evals.runner import save
from maclaurin.evals.summary import summary
from maclaurin.evals.tables import result_table
from maclaurin.mixers.blocks import BLOCKS
from maclaurin.mixers.registry import mixer_entry
from tests.evals.helpers import TEST, experiment, printed


@pytest.mark.parametrize("suite", ["frontier", "search"])
@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_rows_have_equal_parameters_and_the_same_block(suite, preset):
    for planned in plan(suite, preset):
        task, settings = planned.train[0].task(), planned.settings()
        sizes = {label: parameters(row, settings[label], task) for label, row in planned.rows.items()}
        assert max(sizes.values()) < 1.02 * min(sizes.values()), sizes
        for label, row in planned.rows.items():
            for name in row.mixers:
                if mixer_entry(name).mixer.has_block:
                    assert row.options[name]["block"] == "gated", label
                else:  # Mamba-2 has by itself what the block gives to others
                    assert name == "mamba2" and mixer_entry(name).options()["conv_width"] in (None, 4), label
    assert BLOCKS["gated"] == {"conv_width": 4, "skip": True, "gate": True}


def test_mamba2_and_windows_have_the_bytes_of_second_order():
    recall, text = plan("frontier")
    task, settings = text.train[0].task(), text.settings()

    def state(label):
        return build(text.rows[label], settings[label], task).state_nbytes(256)

    for same in ("mamba2-n48", "window-w24", "gla-k32", "mlstm-k32"):
        assert state(same) == pytest.approx(state("2mamba-k8"), rel=0.15), same
    for same in ("mamba2-n160", "window-w88"):
        assert state(same) == pytest.approx(state("2mamba-k16"), rel=0.15), same
    assert state("mamba2-n256x2") == pytest.approx(state("2mamba-k32"), rel=0.2)
    assert state("2mamba-shared-k64") > 1.5 * state("2mamba-k32")
    assert state("window-w88") < state("softmax") < state("fox")
    assert list(recall.rows) == list(text.rows) and recall.families == text.families


def test_no_point_of_the_frontier_is_beaten_by_one_with_as_few_bytes():
    points = [(8, 0.5), (8, 0.6), (16, 0.6), (16, 0.9), (32, 0.8), (64, 0.95)]
    assert [points[place] for place in pareto(points, lower=False)] == [(8, 0.6), (16, 0.9), (64, 0.95)]
    assert [points[place] for place in pareto(points, lower=True)] == [(8, 0.5)]
    assert pareto([], lower=True) == []


def test_the_table_is_by_bytes_and_the_page_draws_a_line_per_family(tmp_path):
    rows = {"b-large": Row(("linear",)), "a-small": Row(("softmax",)), "b-small": Row(("gla",)), "c": Row(("fox",))}
    families = {"b-large": "b", "a-small": "a", "b-small": "b", "c": "c"}
    tiny = experiment(rows=rows, families=families, reference=None, learning_rates=(1e-3,))
    found = {"b-large": (4096, 0.9), "a-small": (2048, 0.6), "b-small": (1024, 0.5), "c": (8192, 0.8)}
    for one in tiny.cells(1):
        size, value = found[one.label]
        scores = [Score(value, value, 10, 16, size, ()) for _ in TEST]
        save(one, Outcome(value, scores, 100, 4, False, 1.0), tmp_path)
    table = ResultTable.from_json(json.loads(json.dumps(summary(tiny, tmp_path, {}).to_json())))
    assert [row.label for row in table.ordered()] == ["b-small", "a-small", "b-large", "c"]
    assert table.frontier() == ["b-small", "a-small", "b-large"]
    shown = printed(result_table(table))
    lines = [line for line in shown.splitlines() if " KiB" in line]
    assert [line.split()[1] for line in lines] == ["b-small", "a-small", "b-large", "c"]
    assert ["◆" in line for line in lines] == [True, True, True, False]
    drawn = page(SuiteResult("", "frontier", [table]))
    charts = [chart for chart in drawn.charts() if "-state-" in chart.key]
    assert [chart.key for chart in charts] == ["tiny-state-0", "tiny-state-1"]
    best, *lines = charts[1].figure.data
    assert list(best.x) == [1024, 2048, 4096] and best.name == "frontier"
    assert {line.name: list(line.text) for line in lines} == {"b": ["small", "large"], "a": ["small"], "c": ["c"]}
    assert charts[1].figure.layout.xaxis.type == "log" and "b-small, a-small, b-large" in charts[1].caption


def test_a_frontier_of_nothing(tmp_path):
    empty = summary(experiment(families={"softmax": "softmax"}), tmp_path, {})
    assert empty.by_state and empty.frontier() == []
    printed(result_table(empty))
    page(SuiteResult("", "frontier", [empty])).html()
