"""Copying: a whole string, or the few tokens of it that matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.data.tasks.base import NOT_ASKED, Batch, Task
from maclaurin.data.tasks.registry import register

# N examples, T length, M tokens to remember, S strings in a sequence


@dataclass(frozen=True)
class SelectiveCopying(Task[Batch]):
    """The tokens among the noise, in their order (Mamba, arXiv 2312.00752, section 4.1.1; data as in S4's copying task).

    The first T-M tokens are noise, 0, but for M of them at uniform places, drawn from 1 … V-2; the last M are the marker
    V-1, and at the j-th of them the j-th token is asked for. Published: vocabulary 16, 16 tokens to remember, length
    4096 (whether that counts the markers is not stated; here it does).
    """

    length: int = 4096
    remember: int = 16
    vocab_size: int = 16

    def __post_init__(self) -> None:
        at_least_one("remember", self.remember)
        if self.length < 2 * self.remember:
            raise ValueError(
                f"length must be at least twice remember ({2 * self.remember}), got {self.length}: the tokens stand "
                f"there and are asked for; raise length, or lower remember to at most {self.length // 2}"
            )
        at_least(3, "vocab_size", self.vocab_size)

    @property
    def chance(self) -> float:
        return 1 / (self.vocab_size - 2)

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        context = self.length - self.remember
        tokens_NM = rng.integers(1, self.vocab_size - 1, size=(count, self.remember))
        places_NM = np.sort(rng.random((count, context)).argpartition(self.remember - 1, axis=1)[:, : self.remember], axis=1)
        tokens_NT = np.zeros((count, self.length), np.int64)
        np.put_along_axis(tokens_NT, places_NM, tokens_NM, axis=1)
        tokens_NT[:, context:] = self.vocab_size - 1
        targets_NT = np.full((count, self.length), NOT_ASKED, np.int64)
        targets_NT[:, context:] = tokens_NM
        return Batch(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))


@dataclass(frozen=True)
class Copying(Task[Batch]):
    """A string, said again (Jelassi et al., "Repeat after me", arXiv 2402.01032; settings of Selective RoPE, 2511.17388).

    "$s|s." with s of uniform length and letters. A training sequence is filled with such strings; the last one is cut
    off and not asked for. A test sequence (packed=False) holds one, padded with "*". Asked for are the second s and the
    full stop, each at the token before it. Tokens: letters, "$", "|", ".", "*". Published: 26 letters; train on lengths
    2 to 64 packed to 420 tokens; test on single strings up to 511 long, whole strings and letters right.
    """

    length: int = 420
    shortest: int = 2
    longest: int = 64
    letters: int = 26
    packed: bool = True

    def __post_init__(self) -> None:
        at_least_one("letters", self.letters)
        at_least_one("shortest", self.shortest)
        at_least(self.shortest, "longest", self.longest)
        if self.length < 2 * self.longest + 3:
            raise ValueError(
                f"length must be at least 2·longest + 3 = {2 * self.longest + 3} for the string, its copy and three signs, "
                f"got {self.length}; raise length or lower longest"
            )

    @property
    def vocab_size(self) -> int:
        return self.letters + 4

    @property
    def chance(self) -> float:
        return 1 / self.letters

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        begin, middle, end, padding = range(self.letters, self.letters + 4)
        strings = -(-self.length // (2 * self.shortest + 3)) if self.packed else 1
        sizes_NS = rng.integers(self.shortest, self.longest + 1, size=(count, strings))
        ends_NS = (2 * sizes_NS + 3).cumsum(1)
        # for each token: its string, the length of that string, and the position in it
        position_T = np.arange(self.length)
        begins_NT = np.zeros((count, self.length + 1), np.int64)
        np.put_along_axis(begins_NT, np.minimum(ends_NS[:, :-1], self.length), 1, axis=1)
        string_NT = begins_NT[:, :-1].cumsum(1)
        size_NT = np.take_along_axis(sizes_NS, string_NT, 1)
        inside_NT = position_T - (np.take_along_axis(ends_NS, string_NT, 1) - 2 * size_NT - 3)

        tokens_NT = rng.integers(self.letters, size=(count, self.length))
        is_copy_NT = (inside_NT > size_NT + 1) & (inside_NT < 2 * size_NT + 2)
        original_NT = np.where(is_copy_NT, position_T - size_NT - 1, position_T)
        tokens_NT = np.take_along_axis(tokens_NT, original_NT, 1)
        tokens_NT[inside_NT == 0] = begin
        tokens_NT[inside_NT == size_NT + 1] = middle
        tokens_NT[inside_NT == 2 * size_NT + 2] = end
        tokens_NT[inside_NT > 2 * size_NT + 2] = padding

        whole_NT = np.take_along_axis(ends_NS, string_NT, 1) <= self.length
        asked_NT = (inside_NT > size_NT) & (inside_NT < 2 * size_NT + 2) & whole_NT
        targets_NT = np.where(asked_NT, np.roll(tokens_NT, -1, axis=1), NOT_ASKED)
        return Batch(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))


register("selective-copying", SelectiveCopying, "the tokens among the noise, in their order")
register("copying", Copying, "strings said again, many in a sequence")
register("copying-long", Copying, "one string said again, up to eight times as long", length=1025, longest=511, packed=False)
