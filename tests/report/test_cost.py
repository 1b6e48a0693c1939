"""What the page says of costs is what the mixers do."""

import re

import pytest

import maclaurin
from maclaurin.report import build
from maclaurin.report.cost import MEASURED, _count, forward_ms, multiply_adds


@pytest.mark.parametrize("name", ["softmax", "2mamba", "linear", "mamba2", "2mamba-e"])
def test_counts_of_longer_sequences_follow_exactly(name):
    mixer = maclaurin.build_mixer(name, 16, 2)
    foreseen = multiply_adds(mixer, (256, 4096))
    assert foreseen[256] * 256 == _count(mixer, 256)
    assert foreseen[4096] * 4096 == pytest.approx(_count(mixer, 4096), rel=1e-12)


def test_linear_mixers_cost_the_same_at_any_length():
    linear, softmax = (multiply_adds(maclaurin.build_mixer(name, 16, 2), (4096, 65536)) for name in ("2mamba", "softmax"))
    assert linear[65536] == pytest.approx(linear[4096], rel=0.1)
    assert softmax[65536] > 10 * softmax[4096]


def test_measuring_ends_with_its_budget():
    mixers = {name: maclaurin.build_mixer(name, 16, 2) for name in ("softmax", "linear")}
    assert all(tuple(times) == MEASURED for times in forward_ms(mixers).values())
    assert all(tuple(times) == MEASURED[:1] for times in forward_ms(mixers, budget=1e-3).values())


def test_measured_costs_state_quartiles_and_load(comparison):
    page = build([comparison], command="x")
    (chart,) = (chart for chart in page.charts() if chart.key == "cost-measured")
    assert "bars are quartiles" in chart.caption and re.search(r"at a load of \d+\.\d on \d+ cores", chart.caption)
    assert all(len(trace.error_y.array) == len(trace.x) > 0 for trace in chart.figure.data)
