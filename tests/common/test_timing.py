"""Timing beside other people: candidates take turns."""

from maclaurin.common.timing import interleaved


def test_candidates_take_turns():
    order = []
    names = ("a", "b", "c")
    times = interleaved({name: lambda name=name: order.append(name) for name in names}, seconds=0, fewest=4)
    assert order == [*names] * 5  # once to warm up
    assert all(timing.low <= timing.median <= timing.high for timing in times.values())


def test_one_repeat_is_its_own_median():
    timing = interleaved({"a": lambda: None}, seconds=0, fewest=1)["a"]
    assert timing.low == timing.median == timing.high
