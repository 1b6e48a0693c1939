"""Who computes which queries of a layer whose state is the tokens themselves.

The later a slice, the more keys its queries see. So the last process is the partner of the first, the last but one that of
the second, and so on: the later of two gives the first tokens of its slice to the earlier one, which computes the layer for
them and gives the outputs back. All processes have equally many pairs of queries and keys then, as in a zigzag over
sequences, and slices stay in one piece, as layers with a recurrent state need them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from maclaurin.distributed.link import DONE, GIVEN, STATE, Link
from maclaurin.distributed.messages import answered
from maclaurin.distributed.slices import Bounds, Received
from maclaurin.distributed.states import ahead_parts, rebuilt, started
from maclaurin.mixers.base import AT_ONCE, Mixer, MixerState
from maclaurin.ops.states import State, TokenState

LOAD, TRANSITION = "load", "transition"  # what goes beside the tokens of a slice


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


def is_balanced(mixer: Mixer) -> bool:
    """Whether its state is all tokens, which all processes get."""
    return mixer.folds and keeps_tokens(mixer) and not mixer.finite_state


def keeps_tokens(mixer: Mixer) -> bool:
    """Whether its state is tokens, all of them or those in a window: what is sent has as many as the slice then."""
    return type(mixer.shapes().attention) is TokenState


class Slices:
    """The keys and values of the slices that a process needs, in its own one's place what it has itself."""

    def __init__(self, like: State, parts: Mapping[int, dict[str, Tensor]]) -> None:
        self.like, self.parts = like, parts
        self.loads = {number: Load(*one[LOAD].tolist()) for number, one in parts.items()}

    def up_to(self, last: int) -> list[Load]:
        return [self.loads[number] for number in range(last + 1)]

    def before(self, number: int) -> State:
        """The tokens of the document that goes on in this slice."""
        state = self.like
        for earlier in range(number):
            parts = self.parts[earlier]
            one = rebuilt(self.like, parts)
            state = one if self.loads[earlier].begins else one.after(state, parts[TRANSITION])
        return state


def gathered(
    link: Link, mixer: Mixer, x: Tensor, bounds: Bounds, start: MixerState, own: State, transition: Tensor
) -> Received:
    """The tokens that this process keeps, and the state before them; those that its partner gives are computed here."""
    rank, partner = link.rank, partner_of(link.rank, link.size)
    whole = [0, x.shape[1]] if bounds is None else [int(bound) for bound in bounds]
    load = torch.tensor(astuple(Load.of(whole)), dtype=torch.long, device=x.device)
    parts = {rank: {**own.tensors(), TRANSITION: transition, LOAD: load}}
    x = link.give(x, parts[rank], [other - rank for other in sent_to(rank, link.size)], STATE)
    for other in needed_by(rank, link.size):
        parts[other] = link.take(mixer, other - rank, STATE, x.device)
        x = answered(x, parts[other][TRANSITION])
    slices = Slices(start.attention, parts)
    if rank < partner:
        x = _computed_for(link, mixer, x, start, slices.before(partner), partner - rank)
    state = replace(start, attention=slices.before(rank))
    if rank <= partner:
        return x, state if rank else None, bounds
    count = given_away(slices.up_to(rank), rank, link.size)
    given = x[:, :count]
    x = link.give(x, {"x": given, **ahead_parts(start)}, [partner - rank], GIVEN)
    if count:
        after, of_given = mixer.fold(given, start)
        state = replace(after, attention=after.attention.after(state.attention, of_given))
    return x[:, count:], state, None if bounds is None else [0, *(bound - count for bound in whole[1:])]


def _computed_for(link: Link, mixer: Mixer, x: Tensor, start: MixerState, before: State, step: int) -> Tensor:
    """x as it is, once the layer has been computed for the tokens that the partner gives."""
    parts = link.take(mixer, step, GIVEN, x.device)
    y = given = parts["x"]
    if given.shape[1]:
        y, _ = mixer.mix(given, replace(started(start, parts), attention=before), replace(AT_ONCE, return_state=False))
    return link.give(x, {"y": y}, [step], DONE)


def completed(link: Link, mixer: Mixer, y: Tensor) -> Tensor:
    """Behind the outputs that the partner has computed."""
    partner = partner_of(link.rank, link.size)
    if partner >= link.rank:
        return y
    return torch.cat([link.take(mixer, partner - link.rank, DONE, y.device)["y"], y], 1)
