"""One decoding step of second-order attention without the ceremony around it.

A step reads 8.6 MB of memory for 16 heads of 64 channels, which takes a quarter of a millisecond; the checks, records and
structs that a call of any shape goes through would add 0.1 ms. Here one look decides whether a call is the plain step that
decoding repeats, and then the kernel's arguments are packed at once. Whatever is not plain goes the general way.
"""

# B batch, S kept and new tokens, H heads, G key-value heads, K, V channels, F = K(K+1)/2, W = V or V+1

from __future__ import annotations

import struct

import torch
from torch import Tensor

from maclaurin.ops.growing import append
from maclaurin.ops.native.library import bare_kernel
from maclaurin.ops.native.operators import is_watched
from maclaurin.ops.states import PowerState

# MaclaurinAttention: sizes; q, k, v, log_decay, y, total; five absent gradients; memories; chunk, folded; scale and flags
_ARGUMENTS = struct.Struct("7q 24q 20q 4q 2q f3i")
_ABSENT = (0,) * 20

Step = tuple[Tensor, PowerState]


def plain_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: PowerState,
    normalize: bool,
    fold_at: int | None,
    fold_every: int,
) -> Step | None:
    """y and the state after one more token, as `power_attention` defines them; None where this is not a plain step."""
    memory, decays = state.memory, state.log_decay
    tokens: tuple[Tensor, ...] = (q, k, v, state.keys, state.values)
    if log_decay is not None and decays is not None:
        tokens = (*tokens, log_decay, decays)
    if (log_decay is None) != (decays is None) or not _is_plain(tokens, state):
        return None
    if not _fits(q, k, v, log_decay, state, normalize):
        return None
    B, _, H, K = q.shape
    S, G, V = state.keys.shape[1] + 1, k.shape[2], v.shape[3]
    if memory is None and (fold_at is None or S >= fold_at):
        return None  # the first fold is a large one
    folded = S if memory is not None and S >= fold_every else 0
    keys, values = append(state.keys, k), append(state.values, v)
    decays = None if log_decay is None or decays is None else append(decays, log_decay)
    y, total = torch.empty(B, 1, H, V), torch.empty(B, 1, H)
    new_memory = torch.empty(memory.shape) if folded and memory is not None else None
    arguments = _ARGUMENTS.pack(
        *(B, 1, S, H, G, K, V),
        *_strided(q),
        *_strided(keys),
        *_strided(values),
        *((0, 0, 0, 0) if decays is None else _strided(decays)),
        *_strided(y),
        *_strided(total),
        *_ABSENT,
        0 if memory is None else memory.data_ptr(),
        0,
        0 if new_memory is None else new_memory.data_ptr(),
        0,
        *(1, folded),
        *(K**-0.5, False, normalize, torch.get_num_threads()),
    )
    bare_kernel("quadratic_forward" if memory is None else "chunked_forward", arguments)
    if new_memory is None:
        return y, PowerState(keys, values, decays, None, memory)
    decays = None if decays is None else decays[:, :0].clone()
    return y, PowerState(keys[:, :0].clone(), values[:, :0].clone(), decays, None, new_memory)


def _is_plain(tokens: tuple[Tensor, ...], state: PowerState) -> bool:
    """float32 on a CPU, no padding, no gradient, no compiler or mode that looks on."""
    if torch.compiler.is_compiling() or state.lengths is not None:
        return False
    if state.memory is not None:
        tokens = (*tokens, state.memory)
        if not state.memory.is_contiguous():
            return False
    for x in tokens:
        if type(x) is not Tensor or x.dtype is not torch.float32 or not x.is_cpu or x.dim() < 3 or x.stride(-1) != 1:
            return False
    return not is_watched(tokens)


def _fits(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: PowerState, normalize: bool) -> bool:
    """One new token a row, of the state's heads and channels, with decays that are none or decays."""
    if q.dim() != 4 or q.shape[1] != 1 or v.dim() != 4:
        return False
    B, _, H, K = q.shape
    _, _, G, V = v.shape
    S, memory = state.keys.shape[1], state.memory
    return (
        k.shape == (B, 1, G, K)
        and v.shape == (B, 1, G, V)
        and H % G == 0
        and state.keys.shape == (B, S, G, K)
        and state.values.shape == (B, S, G, V)
        and (memory is None or memory.shape == (B, G, K * (K + 1) // 2, V + normalize))
        and (log_decay is None or (log_decay.shape == (B, 1, G) and not max(log_decay.flatten().tolist()) > 0))
    )


def _strided(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()[:3]
