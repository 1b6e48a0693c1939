"""ListOps: nested lists of digits, evaluated. Many trees are grown, measured and evaluated at once, level by level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.data.tasks.base import Labelled, Task
from maclaurin.data.tasks.registry import register

Integers = np.ndarray[Any, np.dtype[np.int64]]

OPERATORS = ("MIN", "MAX", "MED", "SM")
OPERATOR_SHARE = 0.25  # of the places where both a digit and a list may stand
TRIED = 256  # trees grown at a time; about one in three has the length of the published setting

# 0 padding, 1 … 10 the digits, 11 … 14 an operator with its bracket, 15 the closing bracket
DIGIT, OPERATOR, CLOSE = 1, 11, 15
SYMBOLS = ("", *"0123456789", *(f"[{operator}" for operator in OPERATORS), "]")


@dataclass(frozen=True)
class ListOps(Task[Labelled]):
    """What does the nested list evaluate to? (Nangia and Bowman 2018; settings of the Long Range Arena, arXiv 2011.04006)

    The grammar: a place above depth `depth` is with probability 1/4 a list, an operator with 2 to `arguments` places
    below it, and else a digit. Operators: minimum, maximum, median (rounded down between two middle ones) and sum modulo
    10. Trees are drawn until one has more than `shortest` and fewer than `longest` tokens, brackets included: an
    operator opens its list, "]" closes it. The label is the value, 0 … 9. Inputs are padded to `longest`. Published:
    depth 10, 10 arguments, 500 to 2000 tokens; 96,000 examples to train, 2,000 to validate and 2,000 to test on.
    """

    longest: int = 2000
    shortest: int = 500
    depth: int = 10
    arguments: int = 10

    def __post_init__(self) -> None:
        at_least(2, "arguments", self.arguments)
        at_least(2, "depth", self.depth)
        at_least_one("shortest", self.shortest)
        at_least(max(self.shortest + 2, 5), "longest", self.longest)
        largest = 1  # a full tree: a digit, and from there upwards a list of such
        for _ in range(self.depth - 1):
            largest = min(2 + self.arguments * largest, 2**31)
        if largest <= self.shortest:
            raise ValueError(
                f"shortest must be below {largest}, the size of the largest tree with depth {self.depth} and "
                f"{self.arguments} arguments, got {self.shortest}; lower shortest, or raise depth or arguments"
            )

    @property
    def vocab_size(self) -> int:
        return len(SYMBOLS)

    @property
    def num_classes(self) -> int:
        return 10

    @property
    def block(self) -> int:
        return 64

    def draw(self, count: int, rng: np.random.Generator) -> Labelled:
        found: list[tuple[Integers, Integers, Integers]] = []
        missing = count
        while missing > 0:
            levels = self._of_right_length(grow(TRIED, self.depth, self.arguments, self.longest, rng))
            if len(levels[0].parent):
                tokens, lengths = linearise(levels, self.longest)
                found.append((tokens, evaluate(levels), lengths))
                missing -= len(lengths)
        inputs, labels, sizes = (torch.from_numpy(np.concatenate(parts)[:count]) for parts in zip(*found, strict=True))
        return Labelled(inputs, labels, sizes)

    def _of_right_length(self, levels: list[Level]) -> list[Level]:
        sizes = subtree_sizes(levels)[0]
        return prune(levels, (sizes > self.shortest) & (sizes < self.longest))


@dataclass(frozen=True)
class Level:
    """All nodes of one depth, of all trees; the children of a node are neighbours, in the order of their parents."""

    parent: Integers  # in the level above; for roots, their number
    symbol: Integers  # its token: a digit or an operator

    def is_list(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self.symbol >= OPERATOR


def grow(trees: int, depth: int, arguments: int, longest: int, rng: np.random.Generator) -> list[Level]:
    """Trees whose root is a list, from the roots down. Those that are too long already stop growing and are dropped."""
    levels = [Level(np.arange(trees), OPERATOR + rng.integers(len(OPERATORS), size=trees))]
    tree = np.arange(trees)  # of each node of the last level
    length = np.full(trees, 2)
    for above in range(1, depth):
        lists = levels[-1].is_list().nonzero()[0]
        parent = np.repeat(lists, rng.integers(2, arguments + 1, size=len(lists)))
        is_list = rng.random(len(parent)) < (OPERATOR_SHARE if above + 1 < depth else 0)
        symbol = np.where(
            is_list,
            OPERATOR + rng.integers(len(OPERATORS), size=len(parent)),
            DIGIT + rng.integers(10, size=len(parent)),
        )
        levels.append(Level(parent, symbol))
        tree = tree[parent]
        length += np.bincount(tree, weights=1 + is_list, minlength=len(length)).astype(np.int64)
        fits = length < longest
        if not fits.all():
            levels = prune(levels, fits)
            tree = (fits.cumsum() - 1)[tree[fits[tree]]]
            length = length[fits]
    return levels


def prune(levels: list[Level], keep: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Level]:
    """The trees to keep, numbered anew."""
    kept: list[Level] = []
    for level in levels:
        stays = keep if not kept else keep[level.parent]
        number = keep.cumsum() - 1  # of a kept parent in its level
        parent = np.arange(stays.sum()) if not kept else number[level.parent[stays]]
        kept.append(Level(parent, level.symbol[stays]))
        keep = stays
    return kept


def subtree_sizes(levels: list[Level]) -> list[Integers]:
    """How many tokens each node of each level takes: one for a digit, two brackets and what is inside for a list."""
    sizes = [1 + level.is_list().astype(np.int64) for level in levels]
    for above, level in zip(range(len(levels) - 2, -1, -1), reversed(levels), strict=False):
        inside = np.bincount(level.parent, weights=sizes[above + 1], minlength=len(sizes[above]))
        sizes[above] += inside.astype(np.int64)
    return sizes


def linearise(levels: list[Level], longest: int) -> tuple[Integers, Integers]:
    """Tokens (trees, longest), padded, and lengths: a node stands behind its parent and its elder siblings."""
    sizes = subtree_sizes(levels)
    tokens = np.zeros((len(sizes[0]), longest), np.int64)
    tree, place = np.arange(len(sizes[0])), np.zeros(len(sizes[0]), np.int64)
    for depth, level in enumerate(levels):
        if depth:
            before = sizes[depth].cumsum() - sizes[depth]  # of all nodes before it in the level
            eldest = np.searchsorted(level.parent, level.parent)
            place = place[level.parent] + 1 + before - before[eldest]
            tree = tree[level.parent]
        tokens[tree, place] = level.symbol
        lists = level.is_list()
        tokens[tree[lists], (place + sizes[depth])[lists] - 1] = CLOSE
    return tokens, sizes[0]


def evaluate(levels: list[Level]) -> Integers:
    """The value of each tree, from the digits up."""
    values = levels[-1].symbol - DIGIT
    for level, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        results = level.symbol - DIGIT
        if len(values):
            order = np.lexsort((values, below.parent))  # children by parent, and within a parent by value
            parent, ordered = below.parent[order], values[order]
            first = np.flatnonzero(np.diff(parent, prepend=-1))
            last = np.append(first[1:], len(parent)) - 1
            median = (ordered[(first + last) // 2] + ordered[(first + last + 1) // 2]) // 2
            by_operator = np.stack([ordered[first], ordered[last], median, np.add.reduceat(ordered, first) % 10])
            lists = parent[first]
            results[lists] = by_operator[level.symbol[lists] - OPERATOR, np.arange(len(lists))]
        values = results
    return values


def text(tokens: torch.Tensor) -> str:
    """One example as it is written: "[MAX 2 9 [MIN 4 7 ] 0 ]"."""
    return " ".join(SYMBOLS[token] for token in tokens.tolist() if token)


register("listops", ListOps, "the value of a nested list of digits")
