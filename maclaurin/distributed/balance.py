"""Who computes which queries of a layer whose state is the tokens themselves.

The later a slice, the more keys its queries see. So the last process is the partner of the first, the last but one that of
the second, and so on: the later of two gives the first tokens of its slice to the earlier one, which computes the layer for
them and gives the outputs back. All processes have equally many pairs of queries and keys then, as in a zigzag over
sequences, and slices stay in one piece, as layers with a recurrent state need them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Load:
    """Of a slice of so many tokens. continuing: those of the document that goes on from the slice before. open: those of the
    document that goes on in the next one. begins: whether that one begins here. pairs: of queries and keys in the slice.
    """

    tokens: int
    continuing: int
    open: int
    begins: int
    pairs: int

    @staticmethod
    def of(bounds: Sequence[int]) -> Load:
        """bounds: of the documents in the slice."""
        sizes = [stop - start for start, stop in pairwise(bounds)]
        pairs = sum(size * (size + 1) // 2 for size in sizes)
        return Load(bounds[-1], sizes[0], sizes[-1], len(sizes) > 1, pairs)


def partner_of(rank: int, size: int) -> int:
    return size - 1 - rank


def needed_by(rank: int, size: int) -> list[int]:
    """The slices of other processes whose keys a process needs, for its own queries and for those of its partner."""
    return [other for other in range(max(rank, partner_of(rank, size))) if other != rank]


def sent_to(rank: int, size: int) -> list[int]:
    """Which processes need the keys of this slice."""
    return [other for other in range(size) if rank in needed_by(other, size)]


def given_away(loads: Sequence[Load], rank: int, size: int) -> int:
    """How many tokens a process gives to its partner, so that both have equally many pairs; one at least stays.

    loads: of the slices from the first one to its own.
    """
    partner = partner_of(rank, size)
    if partner >= rank:
        return 0
    keys, own = _keys_before(loads[:rank]), loads[rank]
    surplus = (_pairs(loads[: rank + 1]) - _pairs(loads[: partner + 1])) / 2
    # n tokens have n·keys + n(n + 1)/2 pairs
    linear = keys + 0.5
    count = math.floor(math.sqrt(linear**2 + 2 * max(0.0, surplus)) - linear)
    return min(count, own.continuing, own.tokens - 1)


def _keys_before(loads: Sequence[Load]) -> int:
    """That the document which goes on has in these slices."""
    keys = 0
    for load in loads:
        keys = load.open + (0 if load.begins else keys)
    return keys


def _pairs(loads: Sequence[Load]) -> int:
    """Of the last of these slices."""
    return loads[-1].continuing * _keys_before(loads[:-1]) + loads[-1].pairs
