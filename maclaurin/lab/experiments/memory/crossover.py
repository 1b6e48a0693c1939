"""From which length on a state is no larger than the keys and values of softmax.

2Mamba, d channels a head, H heads that share G key-value heads, p the bytes of a kept number over those of a summed one:

    state     G·d(d+1)/2 · (d+1) numbers in float32, and the last inputs of the convolution, (H + 2G)·d kept numbers
    softmax   2N·G·d kept numbers
    crossover N ≥ (d+1)²/(4p) + (H/G + 2)/2:     1057.75 for d = 64, H = G, p = 1, so 1058;   2114 for p = 1/2, so 2114

A convolution that is kept in float32 as well makes the second 2115.5, so 2116. Tokens that wait to be folded keep a decay
each, which softmax does not have: a token more at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from maclaurin.mixers import build_mixer
from maclaurin.mixers.base import Mixer


@dataclass(frozen=True)
class Crossover:
    """measured: by the mixers' state_nbytes. predicted: by the formula."""

    dim: int
    heads: int
    kv_heads: int
    dtype: str
    measured: int
    predicted: int


def predicted(dim: int, heads: int, kv_heads: int, kept_bytes: int) -> int:
    """By the formula above, for kept numbers of that many bytes beside sums of 4."""
    return math.ceil((dim + 1) ** 2 / 4 * 4 / kept_bytes + (heads / kv_heads + 2) / 2)


def measured(mixer: Mixer, softmax: Mixer, limit: int = 2**22) -> int | None:
    """The first length from which on the state is no larger than that of softmax; None if that is beyond the limit.

    Both in their own dtypes. States that wait before they fold tokens go up and down: it is the last crossing that counts.
    """
    if mixer.state_nbytes(limit) > softmax.state_nbytes(limit):
        return None
    length = min(limit, 2 * mixer.state_nbytes(limit) // max(softmax.state_nbytes(2) - softmax.state_nbytes(1), 1) + 2)
    while length > 1 and mixer.state_nbytes(length - 1) <= softmax.state_nbytes(length - 1):
        length -= 1
    return length


def crossover(dim: int, heads: int, kv_heads: int, dtype: torch.dtype) -> Crossover:
    """Of 2Mamba against softmax without positions, both with these heads and in this dtype."""
    shape = (dim * heads, heads)
    square = build_mixer("2mamba", *shape, num_kv_heads=kv_heads).to(dtype)
    softmax = build_mixer("softmax", *shape, num_kv_heads=kv_heads, rotary="none").to(dtype)
    found = measured(square, softmax)
    assert found is not None
    name = str(dtype).removeprefix("torch.")
    return Crossover(dim, heads, kv_heads, name, found, predicted(dim, heads, kv_heads, dtype.itemsize))
