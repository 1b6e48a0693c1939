"""Confidence intervals of shares."""

from __future__ import annotations

import math

CONFIDENCE_Z = 1.959963984540054  # 95 %


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` trials."""
    z = CONFIDENCE_Z
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)
