"""Wilson's interval."""

import pytest

from maclaurin.common.intervals import wilson


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_wilson(right, count, low, high):
    """81 of 263 is the example of Newcombe (1998), method 3; the others follow from the formula by hand."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)
