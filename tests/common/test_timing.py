"""Timing beside other people: candidates take turns."""

import itertools
import time

import torch

from maclaurin.common.timing import interleaved


def test_candidates_take_turns():
    order = []
    names = ("a", "b", "c")
    times = interleaved({name: lambda name=name: order.append(name) for name in names}, seconds=0, fewest=4)
    assert order == [*names] * 5  # once to warm up
    assert all(timing.low <= timing.median <= timing.high for timing in times.values())


def test_shuffled_candidates_follow_each_other_alike():
    """Each once per round, and each behind every other one."""
    order = []
    names = ("a", "b", "c")
    interleaved({name: lambda name=name: order.append(name) for name in names}, seconds=0, fewest=30, shuffled=True)
    assert all(sorted(order[at : at + 3]) == [*names] for at in range(0, len(order), 3))
    assert {*itertools.pairwise(order)} >= {*itertools.permutations(names, 2)}


def test_one_repeat_is_its_own_median():
    timing = interleaved({"a": lambda: None}, seconds=0, fewest=1)["a"]
    assert timing.low == timing.median == timing.high


def test_a_long_first_round_is_the_only_one():
    for seconds, calls in ((0.01, 1), (60, 2)):
        done = []
        found = interleaved({"a": lambda done=done: done.append(time.sleep(0.03))}, seconds=seconds, fewest=0, most=1)
        assert len(done) == calls and found.keys() == {"a"}


def test_one_thread_is_timed_by_its_own_work():
    torch.set_num_threads(1)
    timing = interleaved({"asleep": lambda: time.sleep(0.05)}, seconds=0)["asleep"]
    assert timing.median < 25  # milliseconds of CPU time, where the wall clock shows 50
    torch.set_num_threads(2)
    timing = interleaved({"asleep": lambda: time.sleep(0.05)}, seconds=0)["asleep"]
    assert timing.median >= 50
