"""Differences between rows: seed by seed, with the interval that so few seeds allow."""

import math

import pytest

from maclaurin.common.intervals import mean_interval
from maclaurin.training import Recipe
from maclaurin.training.statistics import Figures, best_rate, level, ranked, standing

RECIPE = Recipe(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)


def row(name, *losses):
    return standing(name, RECIPE, [Figures(loss, None, None, None, seed) for seed, loss in enumerate(losses)])


def test_the_interval_of_a_mean_is_students():
    low, high = mean_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert mean_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706))
    assert mean_interval([1.0]) is None
    low, high = mean_interval([0.0, 1.0] * 50)
    assert high - low == pytest.approx(2 * 1.984 * 0.5025 / 10, rel=1e-2)


def test_seeds_are_paired_so_what_both_share_is_no_noise():
    """The losses vary by 1 from seed to seed, the difference by 0.002."""
    best, other = ranked([row("b", 1.101, 2.099, 3.100), row("a", 1.0, 2.0, 3.0)])
    assert (best.name, best.behind) == ("a", None)
    assert other.behind.nats == pytest.approx(0.1) and other.behind.seeds == 3
    assert 0.09 < other.behind.low < other.behind.high < 0.11 and other.behind.level is False
    assert level([best, other]) == []


def test_a_difference_whose_sign_changes_is_level():
    rows = ranked([row("a", 1.0, 2.0, 3.0), row("b", 1.2, 1.9, 3.1)])
    assert rows[1].behind.level and level(rows) == [rows[1]]


def test_one_seed_has_no_interval_and_two_say_little():
    assert ranked([row("a", 1.0), row("b", 2.0)])[1].behind.level is None
    assert ranked([row("a", 1.0, 1.0), row("b", 1.1, 1.2)])[1].behind.level is True  # 0.15 ± 0.64


def test_only_common_seeds_are_paired():
    first = row("a", 1.0, 2.0)
    second = standing("b", RECIPE, [Figures(2.5, None, None, None, 1)])
    behind = ranked([first, second])[1].behind
    assert (behind.nats, behind.seeds, behind.low) == (0.5, 1, None)


def test_the_best_rate_is_the_smaller_of_two_equals():
    assert best_rate({1e-2: 2.0, 1e-3: 2.0, 1e-1: 3.0}) == 1e-3
