"""Recall: what was said with a key, asked for later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.data.tasks.base import NOT_ASKED, Batch, Task
from maclaurin.data.tasks.registry import register

Integers = np.ndarray[Any, np.dtype[np.int64]]

# N examples, T length, K pairs, G slots in which a query may stand


@dataclass(frozen=True)
class MQAR(Task[Batch]):
    """Multi-query associative recall (Arora, Eyuboglu et al., "Zoology", arXiv 2312.04927).

    The first 2K tokens are k₁ v₁ k₂ v₂ …, keys from 1 … V/2-1 and values from V/2 … V-1, each without replacement. Then
    each key stands once more, as a query, in one of the G = (T-2K)/2 slots 2K, 2K+2, …; slots g = 1 … G are drawn
    without replacement with p(g) ∝ g^(power-1) for k₁, k₂, … in turn, so power = 1 is uniform and power = 0.01 puts
    most queries early. At a query the value of its key is asked for. All other tokens are 0, or, with filler="random",
    drawn from the whole vocabulary as in zoology's later runs, keys and values not excepted.

    The published grid is `MQAR_GRID` with 100,000 examples to train and 3,000 to test on, one size per run. Based's figure
    2 (arXiv 2402.18668) trains on a mixture of sizes and tests on others: `MQAR_MIXTURE` and `MQAR_HELD_OUT`.
    """

    length: int = 64
    pairs: int = 4
    vocab_size: int = 8192
    power: float = 0.01
    filler: str = "zero"

    def __post_init__(self) -> None:
        at_least_one("pairs", self.pairs)
        at_least_one("length", self.length)
        if self.length < 4 * self.pairs:
            raise ValueError(
                f"length must be at least 4 tokens per pair: {self.pairs} pairs need {4 * self.pairs}, got {self.length}; "
                f"raise length, or lower pairs to at most {self.length // 4}"
            )
        if self.length % 2:
            raise ValueError(f"length must be even, since queries stand at every other token, got {self.length}")
        at_least_one("vocab_size", self.vocab_size)
        if self.vocab_size // 2 - 1 < self.pairs:
            raise ValueError(
                f"vocab_size must be at least {2 * self.pairs + 2} for {self.pairs} pairs of different keys (the lower half "
                f"without 0) and values (the upper half), got {self.vocab_size}; raise vocab_size or lower pairs"
            )
        one_of("filler", self.filler, ("zero", "random"))
        if not self.power > 0:
            raise ValueError(f"power must be above 0 (1 is uniform), got {self.power}")

    @property
    def chance(self) -> float:
        return 1 / self.pairs  # one of the values in the prompt

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        half, context = self.vocab_size // 2, 2 * self.pairs
        keys_NK = 1 + distinct(count, self.pairs, half - 1, rng)
        values_NK = half + distinct(count, self.pairs, self.vocab_size - half, rng)
        gaps_NK = power_law_gaps(count, self.pairs, (self.length - context) // 2, self.power, rng)
        tokens_NT = np.zeros((count, self.length), np.int64)
        if self.filler == "random":
            tokens_NT[:, context:] = rng.integers(self.vocab_size, size=(count, self.length - context))
        tokens_NT[:, 0:context:2] = keys_NK
        tokens_NT[:, 1:context:2] = values_NK
        targets_NT = np.full((count, self.length), NOT_ASKED, np.int64)
        example_N1 = np.arange(count)[:, None]
        tokens_NT[example_N1, context + 2 * gaps_NK] = keys_NK
        targets_NT[example_N1, context + 2 * gaps_NK] = values_NK
        return Batch(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))


MQAR_GRID = tuple(MQAR(length, pairs) for length, pairs in ((64, 4), (128, 8), (256, 16), (512, 64)))
MQAR_MIXTURE = tuple(  # and how many examples of each
    (MQAR(length, pairs, filler="random"), count)
    for length, pairs, count in ((64, 4, 100_000), (128, 8, 20_000), (256, 16, 20_000), (256, 32, 20_000), (256, 64, 20_000))
)
MQAR_HELD_OUT = tuple(  # 1,000 examples of each
    MQAR(length, pairs, filler="random")
    for length, pairs in ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
)


@dataclass(frozen=True)
class InductionHeads(Task[Batch]):
    """Which token followed the special one? (Olsson et al. 2022; settings of Mamba, arXiv 2312.00752, section 4.1.2)

    T-1 tokens drawn from 0 … V-2, among which the special token V-1 stands once, at a uniform place but the last; the
    T-th token is the special one again, where the token that followed it is asked for. Published: vocabulary 16, train
    at length 256, test from 64 to 2²⁰ = 1,048,576.
    """

    length: int = 256
    vocab_size: int = 16

    def __post_init__(self) -> None:
        at_least(3, "length", self.length)
        at_least(3, "vocab_size", self.vocab_size)

    @property
    def block(self) -> int:
        return max(1, min(256, 2**22 // self.length))  # at most 32 MB per block at a million tokens

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        special = self.vocab_size - 1
        tokens_NT = rng.integers(special, size=(count, self.length))
        place_N = rng.integers(self.length - 2, size=count)
        example_N = np.arange(count)
        tokens_NT[example_N, place_N] = special
        tokens_NT[:, -1] = special
        targets_NT = np.full((count, self.length), NOT_ASKED, np.int64)
        targets_NT[:, -1] = tokens_NT[example_N, place_N + 1]
        return Batch(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))


def distinct(count: int, size: int, below: int, rng: np.random.Generator) -> Integers:
    """(count, size) numbers from 0 … below-1: each row a uniform draw without replacement, in uniform order.

    Floyd's subset: the number that j allows, or j itself where that number is there already. It costs `size` draws per row,
    not `below`; the order, which it does not make uniform, is drawn after it.
    """
    drawn_NK = (rng.random((count, size)) * np.arange(below - size + 1, below + 1)).astype(np.int64)
    for k in range(1, size):
        there_N = (drawn_NK[:, :k] == drawn_NK[:, k, None]).any(1)
        drawn_NK[there_N, k] = below - size + k
    return np.take_along_axis(drawn_NK, rng.random((count, size)).argsort(1), 1)


def power_law_gaps(count: int, size: int, slots: int, power: float, rng: np.random.Generator) -> Integers:
    """(count, size) gaps from 0 … slots-1, drawn one after the other without replacement, p(g) ∝ (g+1)^(power-1).

    A race (Gumbel's top-k without the logarithm): slot g arrives after an exponential time of rate p(g), and the first
    `size` to arrive are such a draw, in the order of arrival.
    """
    times_NG = rng.standard_exponential((count, slots)) * np.arange(1, slots + 1) ** (1 - power)
    if size < slots // 2:
        first_NK = np.argpartition(times_NG, size - 1, axis=1)[:, :size]
        order_NK = np.take_along_axis(times_NG, first_NK, 1).argsort(1)
        return np.take_along_axis(first_NK, order_NK, 1)
    return times_NG.argsort(1)[:, :size]


register("mqar", MQAR, "many keys, each asked for once")
register("induction-heads", InductionHeads, "the token that followed the special one")
