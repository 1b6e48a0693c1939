"""Confidence intervals: of shares, and of means of a few values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE_Z = 1.959963984540054  # 95 %
# the same of Student's t, by degrees of freedom from 1 on; with more than these, that of the normal distribution and 2.4/n
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` trials."""
    z = CONFIDENCE_Z
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None of one value, which tells nothing about others."""
    free = len(values) - 1
    if free < 1:
        return None
    t = STUDENT[free - 1] if free <= len(STUDENT) else CONFIDENCE_Z + 2.4 / free
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return middle - half, middle + half
