"""The recurrences of transformers' RecurrentGemma, xLSTM, RWKV and MiniMax on the kernels of this package."""

# B batch, T time, C channels, H heads, K key channels, V value channels, D channels of a head

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin import ops
from maclaurin.acceleration.documents import documents_of, known
from maclaurin.acceleration.scans import attended, causal_conv
from maclaurin.ops.states import MLSTMState, ScanState

SHUT = -1e4  # the logarithm of a decay that leaves nothing
NOTHING = -1e38  # RWKV's logarithm of the largest weight so far, before the first token


def rglru_scan(
    self: nn.Module,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """hidden_states and recurrent_gate (B,T,C), reset (B,T,1) where a document begins, state (B,C) -> h (B,T,C), state."""
    gate_BTC = recurrent_gate.to(acc_dtype)
    log_decay_BTC = gate_BTC.clamp(min=torch.finfo(acc_dtype).tiny).log().masked_fill(reset, SHUT)
    start = None if recurrent_states is None else ScanState(recurrent_states.to(acc_dtype))
    h, after = ops.linear_scan(hidden_states.to(acc_dtype), log_decay_BTC, state=start)
    assert after is not None
    return h.to(hidden_states.dtype), after.recurrent


def packed_rglru_block(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The block around it: its recurrence begins anew with each document by itself, its convolution does not."""

    @functools.wraps(forward)
    def convolving_documents(self: Any, *args: Any, **kwargs: Any) -> Any:
        documents = documents_of(kwargs)
        if documents is None:
            return forward(self, *args, **kwargs)

        def by_document(conv: nn.Conv1d, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            return causal_conv(inputs[0], conv.weight.squeeze(1), conv.bias)

        hook = self.conv_1d.register_forward_hook(by_document)
        try:
            with known(documents):
                return forward(self, *args, **kwargs)
        finally:
            hook.remove()

    return convolving_documents


def mlstm_cell(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool | None = None,
    mode: str | None = None,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """query, key (B,H,T,K), value (B,H,T,V), gates (B,H,T) -> h (B,H,T,V) and C (B,H,K,V), n (B,H,K), m (B,H,1)."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    gates = (x.transpose(1, 2) for x in (igate, fgate))
    training = "train" in (self.config.mode if mode is None else mode)
    keep = not training or (self.config.return_last_states if return_last_states is None else return_last_states)
    documents = documents_of({})
    if documents is None:
        start = None
        if c_initial is not None and n_initial is not None and m_initial is not None:
            start = _cell_state(c_initial, n_initial, m_initial)
        h, after = ops.mlstm(q, k, v, *gates, eps=self.config.eps, state=start, return_state=keep)
    else:  # what a cache holds before the first token is nothing
        flat = (documents.flat(x) for x in (q, k, v, *gates))
        h, after = ops.mlstm(*flat, eps=self.config.eps, return_state=keep, cu_seqlens=documents.bounds)
        h = documents.in_rows(h)
    h_BHTV = h.transpose(1, 2)
    if not keep:
        return h_BHTV
    assert after is not None and after.log_scale is not None
    C_and_n, m = after.recurrent, after.log_scale
    if documents is not None:
        C_and_n, m = documents.last(C_and_n), documents.last(m)
    m_BH1 = m[..., None].to(C_and_n.dtype)
    return h_BHTV, (C_and_n[..., :-1], C_and_n[..., -1], m_BH1)


def head_norm(self: Any, x: Tensor) -> Tensor:
    """xLSTM's norm of every head: PyTorch's, in one operator for the eight of theirs."""
    wide = x.float() if self.force_float32_reductions else x
    return F.layer_norm(wide, wide.shape[-1:], eps=self.eps).to(x.dtype)


def token_norm(self: Any, x: Tensor) -> Tensor:
    wide = x.float() if self.force_float32_reductions else x
    return F.rms_norm(wide, wide.shape[-1:], eps=self.eps).to(x.dtype)


def _cell_state(c: Tensor, n: Tensor, m: Tensor) -> MLSTMState:
    """Theirs is in units of exp(m) for any m, ours for m >= 0: any m below is multiplied in."""
    below = m.float().clamp(max=0)
    recurrent = torch.cat([c, n[..., None]], dim=-1).float() * below.exp()[..., None]
    return MLSTMState(recurrent, (m.float() - below)[..., 0])


def wkv(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: list[Tensor] | None = None,
    return_state: bool = False,
) -> tuple[Tensor, list[Tensor] | None]:
    """RWKV's average of values, weighted by exp(k) behind a decay per channel; the token's own weight is exp(u + k).

    time_decay and time_first u (C,), key and value (B,T,C); the state is a numerator, a denominator and m (B,C), all in
    units of exp(m), the largest weight so far.
    """
    documents = documents_of({})
    if documents is None:
        y, after = _averaged(time_decay, time_first, key, value, state)
        return y, after if return_state or state is not None else None
    k, v = (documents.flat(x).split(documents.bounds.diff().tolist(), dim=1) for x in (key, value))
    alone = [_averaged(time_decay, time_first, *document, None) for document in zip(k, v, strict=True)]
    y = documents.in_rows(torch.cat([y for y, _ in alone], dim=1))
    last = (documents.last(torch.cat(parts)) for parts in zip(*(after for _, after in alone), strict=True))
    return y, list(last) if return_state or state is not None else None


def _averaged(
    time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, state: list[Tensor] | None
) -> tuple[Tensor, list[Tensor]]:
    k_BTC, v_BTC, fall = key.float(), value.float(), -time_decay.float().exp()
    empty_BC = torch.zeros_like(k_BTC[:, 0])
    sum_BC, weight_BC, m_BC = state or (empty_BC, empty_BC, empty_BC + NOTHING)
    before_BTC, m_BTC = _largest(k_BTC.detach(), fall.detach(), m_BC)
    log_decay = (before_BTC + fall - m_BTC).clamp(min=SHUT)
    log_decay = log_decay - log_decay.detach().clamp(min=0)  # above 0 only by rounding; a clamp would take the gradient away
    gain = (k_BTC - m_BTC).exp()
    start = torch.cat([sum_BC, weight_BC], dim=-1)
    sums, _ = ops.linear_scan(
        torch.cat([gain * v_BTC, gain], dim=-1),
        log_decay.repeat(1, 1, 2),
        state=ScanState(start.contiguous()),
        return_state=False,
    )
    past = torch.cat([start[:, None], sums[:, :-1]], dim=1)
    own = k_BTC + time_first.float()
    largest = torch.maximum(before_BTC, own.detach())
    past, own = past * (before_BTC - largest).exp().repeat(1, 1, 2), (own - largest).exp()
    past_sum, past_weight = past.chunk(2, dim=-1)
    y = (past_sum + own * v_BTC) / (past_weight + own)
    return y.to(key.dtype), [*sums[:, -1].chunk(2, dim=-1), m_BTC[:, -1]]


def _largest(k_BTC: Tensor, fall: Tensor, m_BC: Tensor) -> tuple[Tensor, Tensor]:
    """m_t = max(m_{t-1} + fall, k_t), and m_{t-1}. Any units give the same averages: they are constants for gradients."""
    fallen = fall.double() * torch.arange(k_BTC.shape[1] + 1, dtype=torch.float64, device=k_BTC.device)[:, None]
    start_B1C = m_BC.double()[:, None]
    m = (torch.cat([start_B1C, k_BTC.double() - fallen[1:]], dim=1).cummax(dim=1).values + fallen).float()
    return m[:, :-1], m[:, 1:]


def shifting_documents(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer of RWKV, which mixes a token with the one before it: with nothing where a document begins."""

    @functools.wraps(forward)
    def shifting(self: Any, *args: Any, **kwargs: Any) -> Any:
        documents = documents_of({})
        if documents is None:
            return forward(self, *args, **kwargs)
        begins_BT1 = documents.positions()[..., None] == 0

        def cut(shift: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            return output.masked_fill(begins_BT1, 0)

        hook = self.time_shift.register_forward_hook(cut)
        try:
            return forward(self, *args, **kwargs)
        finally:
            hook.remove()

    return shifting


def lightning_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """MiniMax's linear attention behind a fixed decay per head: hidden states (B,T,·) -> the same, state (B,H,D,D)."""
    heads, D = self.num_attention_heads, self.head_dim
    qkv = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        qkv = qkv * attention_mask[:, -qkv.shape[1] :, None].to(qkv.dtype)
    q, k, v = (x.float() for x in qkv.unflatten(-1, (heads, 3 * D)).split(D, dim=-1))
    log_decay = -self.slope_rate.flatten().float().expand(*q.shape[:3])
    start = None if past_key_values is None else past_key_values.get_linear_cache(self.layer_idx)
    start = None if start is None else start.float()
    y, state = attended((q, k, v, log_decay), start, past_key_values is not None, documents_of(kwargs))
    y = self.norm(y.flatten(2).to(hidden_states.dtype))
    if past_key_values is not None:
        past_key_values.set_linear_cache(self.layer_idx, state)
    return self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * y), state
