"""How the next token of a request is chosen. Each request draws from a generator of its own, so that what it gets does not
depend on which others run beside it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the likeliest token. top_k: of the likeliest so many, 0 for all; top_p: of the likeliest that
    together have this probability. stop_tokens end the output, as its last token."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least_one("max_tokens", self.max_tokens)
        if not (isinstance(self.temperature, int | float) and 0 <= self.temperature < math.inf):
            raise ValueError(f"temperature must be a number of at least 0, got {self.temperature!r}")
        if not (isinstance(self.top_p, int | float) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p!r}")
        if type(self.top_k) is not int or self.top_k < 0:
            raise ValueError(f"top_k must be a whole number of at least 0, got {self.top_k!r}")
        if self.seed is not None and type(self.seed) is not int:
            raise ValueError(f"seed must be a whole number or None, got {self.seed!r}")
        object.__setattr__(self, "stop_tokens", tuple(self.stop_tokens))


class Draws:
    """Numbers in [0, 1), one for every token of a request."""

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def next(self) -> float:
        return self._random.random()


def choose(logits: Tensor, samplings: Sequence[Sampling], draws: Sequence[Draws]) -> list[int]:
    """The next token of every row of logits (N, vocabulary); -1 where they are not finite."""
    best, tokens = logits.max(-1)
    chosen: list[int] = tokens.tolist()
    for row, logit in enumerate(best.tolist()):
        if not math.isfinite(logit):
            chosen[row] = -1
        elif samplings[row].temperature:
            chosen[row] = _drawn(logits[row], samplings[row], draws[row].next())
    return chosen


def _drawn(logits: Tensor, sampling: Sampling, number: float) -> int:
    """The token at which the sum of probabilities, likeliest first, passes the number."""
    ordered, tokens = logits.double().sort(descending=True, stable=True)
    ordered, tokens = (x[: sampling.top_k] if sampling.top_k else x for x in (ordered, tokens))
    sums = ((ordered - ordered[0]) / sampling.temperature).exp().cumsum(0)
    total = sums[-1]
    if sampling.top_p < 1:
        kept = int(torch.searchsorted(sums, sampling.top_p * total)) + 1
        total = sums[min(kept, len(sums)) - 1]
    place = int(torch.searchsorted(sums, number * total, right=True))
    return int(tokens[min(place, len(sums) - 1)])
