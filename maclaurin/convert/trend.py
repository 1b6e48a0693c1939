"""What a curve of recovery extrapolates to: loss above the source's is c·steps^-p, by least squares."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from maclaurin.convert.result import RECOVER, Figures, TokenAgreement

FEWEST = 3  # points of a curve, its end among them
AIM = 1.1  # times the source's perplexity
FURTHER = (10, 100)  # times the steps


@dataclass(frozen=True)
class Trend:
    """exp(intercept)·steps^slope nats above the source, after `steps`."""

    intercept: float
    slope: float
    steps: int

    @classmethod
    def of(cls, excess: Mapping[int, float]) -> Trend:
        """Through the logarithms of all points."""
        x, y = [math.log(steps) for steps in excess], [math.log(nats) for nats in excess.values()]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        slope = covariance / sum((a - mean_x) ** 2 for a in x)
        return cls(mean_y - slope * mean_x, slope, max(excess))

    def times_perplexity(self, steps: float) -> float:
        return math.exp(math.exp(self.intercept) * steps**self.slope)

    def steps_to(self, times: float) -> float:
        """Infinite where it does not fall, or not enough for a number."""
        exponent = (math.log(math.log(times)) - self.intercept) / self.slope if self.slope < 0 else math.inf
        return math.exp(exponent) if exponent < math.log(sys.float_info.max) else math.inf

    def __str__(self) -> str:
        further = ", ".join(f"{self.times_perplexity(m * self.steps):.2f} after {m * self.steps:,}" for m in FURTHER)
        return (
            f"every doubling of the steps leaves {2**self.slope:.0%} of the loss above the source's; at this rate "
            f"{further} steps times its perplexity, and {AIM} after {self.steps_to(AIM):.1e}"
        )


def trend(figures: Figures) -> Trend | None:
    """None where there are too few points, or some are not above the source."""
    end = figures.stages.get(RECOVER)
    if not isinstance(end, TokenAgreement):
        return None
    points = {int(step): point for step, point in (figures.curve or {}).items()} | {figures.plan.recover_steps: end}
    excess = {step: point.loss - point.teacher_loss for step, point in points.items()}
    return Trend.of(excess) if len(excess) >= FEWEST and min(excess.values()) > 0 else None
