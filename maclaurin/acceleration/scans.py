"""What transformers' linear layers call, in its words, on the kernels of this package.

Shapes, names and results are those of the functions of the same meaning in transformers' modeling files, which are in turn
those of mamba-ssm, causal-conv1d and flash-linear-attention. Beyond them packed batches are taken: those packages take
them, transformers without them refuses.
"""

# B batch, T time, C channels, N state dimensions, H heads, G heads of keys, P channels of a head, K key channels

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin import ops
from maclaurin.acceleration.documents import Documents, documents_of
from maclaurin.ops.arithmetic import repeat_heads
from maclaurin.ops.states import DeltaState, LinearState

SILU = ("silu", "swish")
LENGTH_EPS = 1e-6  # of the norms of q and k


def causal_conv(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    """hidden_states (B,C,T), weight (C,width) -> (B,C,T)."""
    x_BTC = hidden_states.to(weight.dtype).transpose(1, 2)
    silu = activation in SILU
    name = "silu" if silu else "identity"
    documents = documents_of(kwargs)
    if documents is None:
        y_BTC, _ = ops.short_conv(x_BTC, weight, bias, activation=name, return_state=False)
    else:
        # a cache has put its zeros before the first document where the row is shorter than the filter
        zeros, x_BTC = x_BTC.split([x_BTC.shape[1] - documents.tokens, documents.tokens], dim=1)
        flat = documents.flat(x_BTC)
        y, _ = ops.short_conv(flat, weight, bias, activation=name, return_state=False, cu_seqlens=documents.bounds)
        y_BTC = torch.cat([zeros, documents.in_rows(y)], dim=1)
    if activation is not None and not silu:
        from transformers.activations import ACT2FN

        y_BTC = ACT2FN[activation](y_BTC)
    return y_BTC.to(hidden_states.dtype).transpose(1, 2)


def unfused(*args: Any, **kwargs: Any) -> None:
    """In place of kernels that do a whole layer at once: None says that there is none, and the layer calls the others."""


def mamba2_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    z: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """hidden_states (B,T,H,P), dt (B,T,H), A (H,), B and C (B,T,G,N) -> y (B,T,H,P) and the state (B,H,P,N)."""
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = F.softplus(dt)
    dt_BTH = dt.clamp(*dt_limit).float()
    x_BTHP, heads = hidden_states.float(), hidden_states.shape[2]
    q, k = (repeat_heads(x.float(), heads) for x in (C, B))
    inputs = (q, k, x_BTHP * dt_BTH[..., None], A.float() * dt_BTH)
    start = None if initial_states is None else initial_states.float().transpose(2, 3).contiguous()
    y, state = attended(inputs, start, return_final_states, documents_of(kwargs))
    if D is not None:
        y = torch.addcmul(y, x_BTHP, D.float().view(heads, -1))
    if z is not None:
        y = y * F.silu(z)
    return y if state is None else (y, state.transpose(2, 3))


def attended(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], start: Tensor | None, keep: bool, documents: Documents | None
) -> tuple[Tensor, Tensor | None]:
    """First-order attention of q, k, v and log decay (B,T,H,…), document by document, and the state (B,H,N,P)."""
    if documents is None:
        state = None if start is None else LinearState(start)
        y, after = ops.linear_attention(*inputs, scale=1.0, normalize=False, state=state, return_state=keep)
        return y, None if after is None else after.recurrent
    _no_past(start)
    flat = (documents.flat(x) for x in inputs)
    y, after = ops.linear_attention(*flat, scale=1.0, normalize=False, return_state=keep, cu_seqlens=documents.bounds)
    return documents.in_rows(y), None if after is None else documents.last(after.recurrent)


def mamba_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """hidden_states and dt (B,C,T), A (C,N), B and C (B,N,T) -> y (B,C,T) and the state (B,C,N)."""
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[:, None]
    if delta_softplus:
        dt = F.softplus(dt)
    x_BTC, dt_BTC, b_BTN, c_BTN = (x.transpose(1, 2).float() for x in (hidden_states, dt, B, C))
    documents = documents_of(kwargs)
    inputs = (x_BTC, dt_BTC, -A.float(), b_BTN, c_BTN)
    if documents is None:
        y, after = ops.selective_scan(*inputs, return_state=return_last_state)
        state = None if after is None else after.recurrent
    else:
        flat = (x if x is inputs[2] else documents.flat(x) for x in inputs)
        y, after = ops.selective_scan(*flat, return_state=return_last_state, cu_seqlens=documents.bounds)
        y, state = documents.in_rows(y), None if after is None else documents.last(after.recurrent)
    if D is not None:
        y = torch.addcmul(y, x_BTC, D.float())
    y_BCT = y.transpose(1, 2)
    if z is not None:
        y_BCT = y_BCT * F.silu(z)
    return y_BCT if state is None else (y_BCT, state)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """query, key (B,T,G,K), value (B,T,H,P), g (B,T,H) or (B,T,H,K), beta (B,T,H) -> y (B,T,H,P), state (B,H,K,P)."""
    heads = value.shape[2]
    q, k = (x.float() for x in (query, key))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS) for x in (q, k))
    inputs = (repeat_heads(q, heads), repeat_heads(k, heads), value.float(), beta.float(), g.float())
    documents = documents_of(kwargs)
    if documents is None:
        start = None if initial_state is None else DeltaState(initial_state.float())
        y, after = ops.delta_rule(*inputs, state=start, return_state=output_final_state)
        return y.to(query.dtype), None if after is None else after.recurrent
    _no_past(initial_state)
    flat = (documents.flat(x) for x in inputs)
    y, after = ops.delta_rule(*flat, return_state=output_final_state, cu_seqlens=documents.bounds)
    state = None if after is None else documents.last(after.recurrent)
    return documents.in_rows(y).to(query.dtype), state


def _no_past(state: Tensor | None) -> None:
    if state is not None:
        raise ValueError("a packed batch begins its documents: give it without a cache of what came before")
