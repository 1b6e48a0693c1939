"""When tokens are folded into a recurrent state: from the length on at which the recurrent state is the smaller one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from maclaurin.ops.features import Kernel

MOST_FEATURES = 2**16  # beyond it a recurrent state is larger than any cache it could replace: tokens are kept instead
MOST_AT_ONCE = 2**14  # up to so many (order 2 of 180 channels) a graph has a recurrent state from the first token on


def fold_length(
    key_dim: int,
    value_dim: int,
    order: int | Iterable[int] = 2,
    *,
    normalize: bool = True,
    dtype: torch.dtype = torch.float32,
) -> int:
    """The number of tokens at which the recurrent state is no larger than their keys and values: 1057 for d = 64, order 2.

    `dtype` is that of the tokens. The recurrent state is float32 at least, so it takes twice as many tokens in bfloat16.
    """
    return fold_length_of(Kernel.of(order), key_dim, value_dim, normalize, dtype)


@cache
def second_order_fold(key_dim: int, value_dim: int, normalize: bool, dtype: torch.dtype) -> int:
    """The same for order 2, remembered: every decoding step asks."""
    return fold_length(key_dim, value_dim, normalize=normalize, dtype=dtype)


def fold_length_of(kernel: Kernel, key_dim: int, value_dim: int, normalize: bool, dtype: torch.dtype) -> int:
    features = kernel.feature_count(key_dim)
    if features > MOST_FEATURES:
        return 2**62
    state_bytes = features * (value_dim + normalize) * torch.promote_types(dtype, torch.float32).itemsize
    token_bytes = (key_dim + value_dim) * dtype.itemsize
    return -(-state_bytes // token_bytes)


def folds_at_once(features: int) -> bool:
    """Whether tokens are folded one by one where nobody says when: in a graph, which is made for the shapes of a state.

    Tokens that wait would be a graph for each kind of state: without a recurrent state, with 0, 1 or more tokens beside it.
    """
    return torch.compiler.is_compiling() and features <= MOST_AT_ONCE


def buffered(tokens: int, fold_at: int, fold_every: int) -> int:
    """How many of the last tokens are not folded yet, if all were when they were `fold_at`, and then every so many."""
    return tokens if tokens < fold_at else (tokens - fold_at) % fold_every
