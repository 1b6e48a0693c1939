"""First order on a GPU by the kernels of flash-linear-attention (fla-core), where it is installed: none are written here.

Its kernels take as many heads of keys and values as of queries, and no divisor: keys, values, decays and states are
repeated, and a column of ones beside the values counts. Log decays are clamped where their exponential is zero in float32.
States are of unscaled keys, (B,H,K,V), as ours are.
"""

# B batch, T time, H heads, G key-value heads, K, V channels, W = V or V+1

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.arithmetic import repeat_heads, safe_divide
from maclaurin.ops.transforms import is_transformed

ZERO = -100.0  # log decays: exp of it is zero in float32, and sums of a block of them stay exact enough
LARGEST_KEY = 256  # channels that the kernels take

Found = tuple[Tensor, Tensor | None]


@cache
def is_installed() -> bool:
    return find_spec("fla") is not None and find_spec("triton") is not None


def runs_on(x: Tensor) -> bool:
    """Whether these kernels run on queries like x (B,T,H,K): whole sequences on a GPU, not single tokens."""
    return x.is_cuda and is_installed() and x.shape[1] > 1 and x.shape[3] <= LARGEST_KEY and not is_transformed()


def linear(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, state: Tensor | None, scale: float, normalize: bool, keep: bool
) -> Found:
    """As `linear_attention`: log decays a per head, per channel, or none; y in float32 where it is divided."""
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    H, G = q.shape[2], k.shape[2]
    if normalize:  # what counts tokens must not be rounded
        q, k, v = q.float(), k.float(), torch.cat([v.float(), torch.ones_like(v[..., :1], dtype=torch.float32)], -1)
    k, v, g = _repeated(k, v, a, heads=H)
    op = chunk_gla if g is not None and g.dim() == 4 else chunk_simple_gla
    start = None if state is None else state.float().repeat_interleave(H // G, 1)
    y, end = op(q.contiguous(), k, v, g, scale=scale, initial_state=start, output_final_state=keep)
    y = safe_divide(y[..., :-1], y[..., -1:]) if normalize else y
    return y, _of_groups(end, G) if keep else None


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None, scale: float, keep: bool
) -> Found:
    """As `delta_rule` of order 1, gated or not."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    H, G = q.shape[2], k.shape[2]
    log_decay = torch.zeros_like(beta, dtype=torch.float32) if log_decay is None else log_decay
    k, v, g, beta = _repeated(k, v, log_decay, beta, heads=H)
    start = None if state is None else state.float().repeat_interleave(H // G, 1)
    y, end = chunk_gated_delta_rule(
        q.contiguous(), k, v, g=g, beta=beta, scale=scale, initial_state=start, output_final_state=keep
    )
    return y, _of_groups(end, G) if keep else None


def _repeated(k: Tensor, v: Tensor, log_decay: Tensor | None, *others: Tensor, heads: int) -> Any:
    g = None if log_decay is None else log_decay.float().clamp(min=ZERO)
    return [None if x is None else repeat_heads(x, heads).contiguous() for x in (k, v, g, *others)]


def _of_groups(state: Tensor, groups: int) -> Tensor:
    """That of the first query head of each group: all of them have the same."""
    return state[:, :: state.shape[1] // groups].contiguous()
