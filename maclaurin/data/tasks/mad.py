"""The synthetic tasks of MAD (Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844).

Six tasks: recall in context, with noise, with keys and values of several tokens, memorised facts, compression, and
selective copying (`copying.py`). The authors train recall on every next token and test it on answers; here both ask for
answers alone, which is all that the others of this package do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.data.tasks.base import NOT_ASKED, Batch, Task
from maclaurin.data.tasks.registry import register

Integers = np.ndarray[Any, np.dtype[np.int64]]
FACTS_SEED = 12345  # of what is memorised: the same in training and in tests

# N examples, T length, P pairs


@dataclass(frozen=True)
class InContextRecall(Task[Batch]):
    """Pairs k v k v …: at every key that occurred before, its value is asked for.

    The lower half of the vocabulary are keys, the upper half values; a key has one value in a sequence, drawn with
    replacement, as the keys are. noise: the share of pairs that are two of the last `noise_vocab` tokens instead.
    """

    length: int = 128
    vocab_size: int = 16
    noise: float = 0.0
    noise_vocab: int = 0

    def __post_init__(self) -> None:
        at_least(4, "length", self.length)
        if self.length % 2:
            raise ValueError(f"length must be even, for pairs of a key and a value, got {self.length}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise must be at least 0 and below 1, got {self.noise}")
        if (self.noise > 0) != (self.noise_vocab > 0):
            raise ValueError(f"noise and noise_vocab need each other, got {self.noise} and {self.noise_vocab}")
        if self.vocab_size - self.noise_vocab < 4:
            raise ValueError(f"vocab_size must leave 4 tokens for keys and values, got {self.vocab_size}")

    @property
    def chance(self) -> float:
        return 2 / (self.vocab_size - self.noise_vocab)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        clear = self.vocab_size - self.noise_vocab
        half, pairs = clear // 2, self.length // 2
        keys_NP = rng.integers(half, size=(count, pairs))
        of_key = rng.integers(half, clear, size=(count, half))
        values_NP = np.take_along_axis(of_key, keys_NP, 1)
        noisy_NP = rng.random((count, pairs)) < self.noise
        noisy_NP[:, 0] = False  # so that there is something to recall
        keys_NP[:, -1] = keys_NP[:, 0]
        values_NP[:, -1] = values_NP[:, 0]
        noisy_NP[:, -1] = False
        again_NP = np.zeros((count, pairs), bool)
        seen = np.zeros((count, half), bool)
        rows = np.arange(count)
        for place in range(pairs):
            own = keys_NP[:, place]
            again_NP[:, place] = seen[rows, own] & ~noisy_NP[:, place]
            seen[rows, own] |= ~noisy_NP[:, place]
        tokens = np.stack([keys_NP, values_NP], -1)
        tokens[noisy_NP] = rng.integers(clear, max(self.vocab_size, clear + 1), size=(int(noisy_NP.sum()), 2))
        targets = np.full((count, pairs, 2), NOT_ASKED)
        targets[..., 0] = np.where(again_NP, values_NP, NOT_ASKED)
        shape = (count, self.length)
        return Batch(torch.from_numpy(tokens.reshape(shape)), torch.from_numpy(targets.reshape(shape)))


@dataclass(frozen=True)
class FuzzyRecall(Task[Batch]):
    """The same with keys and values of one to `motif` tokens: after a key that occurred before, every token of its value is
    asked for. Tokens of a motif differ. longest_keys: all keys have `motif` tokens, as in the authors' tests. The last token
    of the vocabulary pads the beginning.
    """

    length: int = 128
    vocab_size: int = 16
    motif: int = 3
    longest_keys: bool = False

    def __post_init__(self) -> None:
        at_least_one("motif", self.motif)
        at_least(4 * self.motif, "length", self.length)
        if (self.vocab_size - 1) // 2 < self.motif:
            raise ValueError(f"vocab_size must be at least {2 * self.motif + 1} for motifs of {self.motif} different tokens")

    @property
    def chance(self) -> float:
        return 2 / (self.vocab_size - 1)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        tokens_NT = np.full((count, self.length), self.vocab_size - 1, np.int64)
        targets_NT = np.full((count, self.length), NOT_ASKED, np.int64)
        for row in range(count):
            tokens, targets = self._sequence(rng)
            tokens_NT[row, self.length - len(tokens) :] = tokens
            targets_NT[row, self.length - len(tokens) :] = targets
        return Batch(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))

    def _sequence(self, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        half = (self.vocab_size - 1) // 2
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        tokens: list[int] = []
        targets: list[int] = []
        first: tuple[int, ...] | None = None
        while True:
            size = self.motif if self.longest_keys else int(rng.integers(1, self.motif + 1))
            key = tuple(rng.permutation(half)[:size].tolist())
            value = tuple((half + rng.permutation(self.vocab_size - 1 - half)[: rng.integers(1, self.motif + 1)]).tolist())
            ending = first is not None and len(tokens) + 4 * self.motif > self.length
            if ending and first is not None:
                key = first  # so that there is something to recall
            again = key in known
            value = known.setdefault(key, value)
            first = first or key
            tokens += [*key, *value]
            asked = value if again else (NOT_ASKED,) * len(value)
            targets += [*(NOT_ASKED,) * (len(key) - 1), *asked, NOT_ASKED]
            if ending:
                return tokens, targets


@lru_cache(maxsize=8)
def facts(half: int, values: int) -> Integers:
    """A value for every key."""
    return half + np.random.default_rng(FACTS_SEED).permutation(values)[:half]


@dataclass(frozen=True)
class Memorisation(Task[Batch]):
    """Facts that are the same in every sequence: after each key stands the last token of the vocabulary, where the key's
    value is asked for. The sequence itself never says it.
    """

    length: int = 32
    vocab_size: int = 256

    def __post_init__(self) -> None:
        at_least(2, "length", self.length)
        at_least(4, "vocab_size", self.vocab_size)
        if self.length % 2:
            raise ValueError(f"length must be even, for a key and what stands behind it, got {self.length}")

    @property
    def chance(self) -> float:
        return 1 / (self.vocab_size - 1 - (self.vocab_size - 1) // 2)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        half = (self.vocab_size - 1) // 2
        keys = rng.integers(half, size=(count, self.length // 2))
        tokens = np.stack([keys, np.full_like(keys, self.vocab_size - 1)], -1)
        values = facts(half, self.vocab_size - 1 - half)[keys]
        targets = np.stack([np.full_like(keys, NOT_ASKED), values], -1)
        shape = (count, self.length)
        return Batch(torch.from_numpy(tokens.reshape(shape)), torch.from_numpy(targets.reshape(shape)))


@dataclass(frozen=True)
class Compression(Task[Batch]):
    """Random tokens, and at the end the last one of the vocabulary: its vector must have them all.

    Targets are at the tokens themselves, which only a model that reads nothing but the last vector can be asked for
    (`Setting.model` "compressed").
    """

    length: int = 32
    vocab_size: int = 16

    def __post_init__(self) -> None:
        at_least(2, "length", self.length)
        at_least(3, "vocab_size", self.vocab_size)

    @property
    def chance(self) -> float:
        return 1 / (self.vocab_size - 1)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        tokens_NT = torch.from_numpy(rng.integers(self.vocab_size - 1, size=(count, self.length)))
        targets_NT = tokens_NT.clone()
        tokens_NT[:, -1], targets_NT[:, -1] = self.vocab_size - 1, NOT_ASKED
        return Batch(tokens_NT, targets_NT)


register("mad-recall", InContextRecall, "the value of every key that occurred before")
register("mad-noisy-recall", InContextRecall, "the same among noise", vocab_size=32, noise=0.2, noise_vocab=16)
register("mad-fuzzy-recall", FuzzyRecall, "the same with keys and values of several tokens")
register("mad-memorisation", Memorisation, "values of keys that no sequence says")
register("mad-compression", Compression, "all tokens, from the vector of the last one")
