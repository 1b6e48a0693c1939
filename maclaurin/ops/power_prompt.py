"""A prompt that starts a sequence, without the ceremony around it: what `native/step.py` is for one token.

At 256 tokens the kernel takes 0.6 of the time of PyTorch's attention, and the checks and records of a call of any shape took
as long again. Whatever is not plain goes the general way, which also says what is wrong.
"""

# B batch, T tokens, H heads, G key-value heads, K, V channels

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.common.arguments import LARGEST
from maclaurin.ops import native
from maclaurin.ops.arithmetic import has_nan
from maclaurin.ops.backends import note
from maclaurin.ops.crossover import longest_direct
from maclaurin.ops.folding import buffered, second_order_fold
from maclaurin.ops.native.watching import is_watched
from maclaurin.ops.power_native import Policy, lazy_fold, tasks_in_chunks
from maclaurin.ops.states import PowerState, TokenState


def plain_prompt(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    normalize: bool,
    chunk_size: int,
    fold_at: int | None,
    fold_every: int,
    return_state: bool,
) -> tuple[Tensor, PowerState | None] | None:
    """y and the state after the first tokens, as `power_attention` defines them; None where this is not plain.

    Plain: order 2 in float32 on a CPU without gradients, no longer than the direct sum is the faster form.
    """
    tensors = (q, k, v) if log_decay is None else (q, k, v, log_decay)
    if not native.available() or is_watched(tensors) or not all(_is_plain(x) for x in tensors):
        return None
    if not q.dim() == k.dim() == v.dim() == 4 or 0 in q.shape or 0 in v.shape:
        return None
    (B, T, H, K), (G, V) = q.shape, v.shape[2:]
    if H % G or k.shape != (B, T, G, K) or v.shape != (B, T, G, V):
        return None
    if log_decay is not None and (log_decay.shape != (B, T, G) or not log_decay.max().item() <= 0):
        return None
    fold_at = second_order_fold(K, V, normalize, torch.float32) if fold_at is None else fold_at
    if not all(type(x) is int and 0 < x <= LARGEST for x in (fold_at, fold_every, chunk_size)):
        return None
    if not 1 < T <= longest_direct("native", K * (K + 1) // 2, tasks=tasks_in_chunks(q, v, gradients=False)):
        return None
    scale = K**-0.5
    y: Tensor = native.call("quadratic", q, k, v, log_decay, scale, False, normalize, 0)[0]
    if has_nan(y):
        return None
    note("power_attention", "parallel", None, q)
    if not return_state:
        return y, None
    folded = T - buffered(T, fold_at, fold_every)
    kept = TokenState(*(None if x is None else _own(x[:, folded:]) for x in (k, v, log_decay)))  # type: ignore[arg-type]
    if not folded:
        return y, PowerState(kept.keys, kept.values, kept.log_decay)
    policy = Policy(scale, normalize, chunk_size, "auto", folded, through_state=False)
    return y, PowerState.lazily(kept, lazy_fold(H, k, v, log_decay, policy))


def _is_plain(x: Tensor) -> bool:
    return type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu


def _own(tokens: Tensor) -> Tensor:
    """A state shares no memory with the caller's tensors."""
    return tokens.clone(memory_format=torch.contiguous_format)
