"""The scans of transformers' RecurrentGemma and xLSTM, methods of their classes, on the kernels of this package."""

# B batch, T time, C channels, H heads, K key channels, V value channels

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin import ops
from maclaurin.acceleration.documents import documents_of, known
from maclaurin.acceleration.scans import causal_conv
from maclaurin.ops.states import MLSTMState, ScanState

SHUT = -1e4  # the logarithm of a decay that leaves nothing


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


def _cell_state(c: Tensor, n: Tensor, m: Tensor) -> MLSTMState:
    """Theirs is in units of exp(m) for any m, ours for m >= 0: any m below is multiplied in."""
    below = m.float().clamp(max=0)
    recurrent = torch.cat([c, n[..., None]], dim=-1).float() * below.exp()[..., None]
    return MLSTMState(recurrent, (m.float() - below)[..., 0])
