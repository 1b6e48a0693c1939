"""State tracking: where a sequence of moves leads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.data.tasks.base import NOT_ASKED, Batch, Task
from maclaurin.data.tasks.registry import register

Table = np.ndarray[Any, np.dtype[np.int64]]

LARGEST_GROUP = 5040  # elements of S7; its table has 25 million entries

# N examples, T length, G elements of the group, P points that they permute


@dataclass(frozen=True)
class StateTracking(Task[Batch]):
    """The word problem of a group (Merrill et al., arXiv 2404.08819; settings of Selective RoPE, arXiv 2511.17388).

    A start token and T elements g₁ … g_T, uniform; at g_t the product g₁g₂…g_t is asked for, where (ab)(i) = a(b(i)).
    Tokens: the elements, 0 the identity, and the start token. Groups: "parity" = "Z2", the cyclic "Zm", the symmetric
    "Sn", the alternating "An". Published: train at length 128, test at 512. Parity and Zm are abelian, S3 is not but is
    solvable; A5 and S5 are not solvable, so that no fixed depth of a diagonal recurrence is expected to track them.
    """

    group: str = "parity"
    length: int = 128

    def __post_init__(self) -> None:
        at_least_one("length", self.length)
        multiplication(self.group)

    @property
    def num_classes(self) -> int:
        return len(multiplication(self.group))

    @property
    def vocab_size(self) -> int:
        return self.num_classes + 1

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        table_GG = multiplication(self.group)
        elements_NT = rng.integers(len(table_GG), size=(count, self.length))
        start_N1 = np.full((count, 1), len(table_GG))
        tokens = np.concatenate([start_N1, elements_NT], axis=1)
        targets = np.concatenate([np.full((count, 1), NOT_ASKED), running_products(elements_NT, table_GG)], axis=1)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))


def running_products(elements_NT: Table, table_GG: Table) -> Table:
    """g₁g₂…g_t for every t: products of 1, 2, 4, … neighbours, since multiplication is associative."""
    products_NT = elements_NT
    reach = 1
    while reach < products_NT.shape[1]:
        longer = table_GG.take(products_NT[:, :-reach] * len(table_GG) + products_NT[:, reach:])
        products_NT = np.concatenate([products_NT[:, :reach], longer], axis=1)
        reach *= 2
    return products_NT


@lru_cache(maxsize=8)
def multiplication(group: str) -> Table:
    """The table of a group, (ab)(i) = a(b(i)): row a, column b, entry ab. Element 0 is the identity."""
    kind, size = _kind_and_size(group)
    if kind == "Z":
        table_GG = (np.arange(size) + np.arange(size)[:, None]) % size  # rotations: row a is rotation a, and its products
    else:
        elements_GP = np.array(list(permutations(range(size))))
        if kind == "A":
            elements_GP = elements_GP[_is_even(elements_GP)]
        # in the order of `permutations` a permutation read as a number grows, so a product is found by searching
        digits_P = size ** np.arange(size - 1, -1, -1)
        numbers_G = elements_GP @ digits_P
        table_GG = np.stack([np.searchsorted(numbers_G, a_P[elements_GP] @ digits_P) for a_P in elements_GP])
    table_GG.setflags(write=False)  # shared by all tasks of this group
    return table_GG


def _kind_and_size(group: str) -> tuple[str, int]:
    match = re.fullmatch(r"([ZSA])(\d+)", "Z2" if group == "parity" else group)
    kind, size = (match[1], int(match[2])) if match else ("", 0)
    smallest, largest = {"Z": (2, LARGEST_GROUP), "S": (2, 7), "A": (3, 7)}.get(kind, (1, 0))
    if not smallest <= size <= largest:
        raise ValueError(
            f"group must be 'parity', 'Zm' with m from 2 to {LARGEST_GROUP}, 'Sn' with n from 2 to 7 or 'An' with n "
            f"from 3 to 7, such as 'S5', got {group!r}"
        )
    return kind, size


def _is_even(elements_GP: Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    first, second = np.triu_indices(elements_GP.shape[1], 1)
    inversions_G = (elements_GP[:, first] > elements_GP[:, second]).sum(1)
    return inversions_G % 2 == 0


register("parity", StateTracking, "is the number of ones so far odd")
register("state-tracking", StateTracking, "where a sequence of moves of a group leads", group="S5")
