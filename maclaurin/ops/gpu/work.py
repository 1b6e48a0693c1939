"""What both forms of second order cost on a GPU, by head size: a model that chooses until `doctor --tune` has measured.

Time per token and head is the larger of products over a share of the peak and of bytes over 80 % of the bandwidth. The
share that a kernel reaches is an assumption; it is the same for both forms, so that where products decide, as they do on
every GPU of `peaks.py`, it makes no difference to the choice.
"""

# D channels of keys and values per head, F features as the kernels hold them, C chunk, T tokens

from __future__ import annotations

import math
from typing import NamedTuple

from maclaurin.ops.gpu.layout import TILE, pairs
from maclaurin.ops.gpu.peaks import Peak

C = 512
OF_BANDWIDTH = 0.8
LONGEST = 2**20  # tokens; nobody asks beyond


class Share(NamedTuple):
    """Of the peak, that our kernels reach."""

    forward: float
    backward: float

    def __str__(self) -> str:
        return f"{100 * self.forward:.0f} / {100 * self.backward:.0f} %"


class Work(NamedTuple):
    """Per token and head."""

    flops: float
    bytes: float


USUAL = Share(0.45, 0.40)
UNKNOWN = Peak(1.0, math.inf)  # of a GPU without a data sheet here: products decide


def chunked(D: int) -> tuple[Work, Work]:
    """Forward and backward through states in bfloat16, which the backward computes again."""
    F = pairs(D) * TILE**2
    states = F * D * 2 / C
    forward = Work(2 * 2 * F * D + _pairs(C, D, 2) + 4 * D * D, 6 * D * 2 + 2 * states + 12)
    backward = Work(2 * D * (3 * F + 2 * D * D) + _pairs(C, D, 7) + 8 * D * D, 40 * D + 5 * states + 40)
    return forward, backward


def direct(T: int, D: int) -> tuple[Work, Work]:
    return Work(_pairs(T, D, 2), 4 * D * 2), Work(_pairs(T, D, 7), 24 * D)


def _pairs(T: int, D: int, products: int) -> float:
    """FLOPs of so many products over the keys before a token, with half a tile of 128 that the mask wastes."""
    return products * 2 * D * (T / 2 + 64)


def nanoseconds(peak: Peak, works: tuple[Work, Work], share: Share) -> float:
    return sum(
        1e-3 * max(work.flops / (part * peak.tflops), work.bytes / (OF_BANDWIDTH * peak.bandwidth))
        for work, part in zip(works, share, strict=True)
    )


def longest_direct(peak: Peak | None, D: int) -> int:
    """Up to how many tokens the direct form takes less time than states, forward and backward together."""
    here = UNKNOWN if peak is None else peak
    states = nanoseconds(here, chunked(D), USUAL)
    low, high = 0, LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if nanoseconds(here, direct(middle, D), USUAL) < states else (low, middle)
    return low
