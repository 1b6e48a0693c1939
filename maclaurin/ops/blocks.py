"""Queries in blocks: quadratic time where there is no finite state, but never a T x T matrix in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def over_query_blocks(attend: Callable[[Tensor, int], Tensor], q: Tensor, slots: int, block: int) -> Tensor:
    """attend(queries, number of keys they may see) for blocks of q (..., T, K), which is computed again backwards.

    The queries are the last T of the `slots` keys.
    """
    T = q.shape[-2]
    if T <= block:
        return attend(q, slots)
    ends = range(slots - T + block, slots + block, block)
    pieces = []
    for q_block, end in zip(q.split(block, dim=-2), ends, strict=True):
        seen = min(end, slots)
        if torch.is_grad_enabled():
            pieces.append(checkpoint(attend, q_block, seen, use_reentrant=False))
        else:
            pieces.append(attend(q_block, seen))
    return torch.cat(pieces, dim=-2)
