"""First-order attention: no decay, one decay a head, or one decay a key channel.

Without decay or with one a head it is `power_attention` of order 1, whose memory is so small that every token is folded
at once. A decay a channel does not factor into one number a pair, so it has a chunk of its own here.

Inside such a chunk, w_ij = Σ_c q_ic k_jc exp(L_ic - L_jc). Splitting the exponential as exp(L_i)·exp(-L_j) would overflow,
so the chunk is halved: queries of the second half meet keys of the first through the sum at the middle, where both
factors are at most 1, and each half is halved again until the exponentials of all pairs are few enough to write out.
The native kernels take a block of tokens at a time in every form; `form` and `chunk_size` only make it smaller.
"""

# B batch, T time, H heads, G key-value heads, R = H/G, N = B·G, C chunk, K key channels, W value channels (+1 if normalised)

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from maclaurin.common.arguments import at_least_one
from maclaurin.ops import checks, decay, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.causality import causal
from maclaurin.ops.power import power_attention
from maclaurin.ops.ragged import Inputs, over_documents
from maclaurin.ops.states import LinearState, PowerState, State

CHUNK = 64
SMALLEST_HALF = 16  # pairs of this many tokens are written out
PARALLEL_UP_TO = 256  # tokens: below it the T x T matrix is faster than the state (`maclaurin bench attention`)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    normalize: bool = True,
    state: State | None = None,
    return_state: bool = True,
    form: str = "auto",
    backend: str = "auto",
    attention_mask: Tensor | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    lengths: Tensor | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Tensor, State | None]:
    """Causal attention with the weights scale · Σ_c q_tc k_sc exp(a_{s+1,c} + … + a_tc), divided by their sum.

    q (B,T,H,K), k (B,T,G,K), v (B,T,G,V); log_decay (B,T,G or H), or (B,T,G or H,K) for a decay a channel, <= 0. Feature
    maps are applied to q and k before the call. Other arguments as in `power_attention`.
    """
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k, per_channel=True)
    checks.form_and_backend(form, backend, checks.BACKENDS_WITH_NATIVE)
    checks.scale(scale)
    at_least_one("chunk_size", chunk_size)
    if form == "auto":
        form = "parallel" if q.shape[1] <= PARALLEL_UP_TO else "chunked"
    if log_decay is None or log_decay.dim() == 3:
        return power_attention(
            q,
            k,
            v,
            log_decay,
            order=1,
            scale=scale,
            normalize=normalize,
            state=checks.initial_state(state, PowerState),
            return_state=return_state,
            form=form,
            backend=backend,
            attention_mask=attention_mask,
            cu_seqlens=cu_seqlens,
            lengths=lengths,
            chunk_size=chunk_size,
            fold_at=1,
            fold_every=1,
        )
    initial = checks.sound_state(state, LinearState, q)
    if log_decay.shape[2] != k.shape[2]:
        k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    memory_shape = (k.shape[2], k.shape[3], v.shape[3] + normalize)
    if initial is not None and initial.memory.shape[1:] != memory_shape:
        raise ValueError(
            f"state must hold a memory of {memory_shape} (heads, key channels, value channels) a row, "
            f"got {tuple(initial.memory.shape[1:])}"
        )
    size = {"parallel": q.shape[1], "chunked": chunk_size, "recurrent": 1}[form]
    refusal = native.refusal(q, torch.promote_types(q.dtype, torch.float32))
    if backend == "native" and refusal is not None:
        raise ValueError(f"backend='native' needs {refusal}")
    run = _per_channel if backend == "torch" or refusal is not None else _per_channel_natively

    def dense(
        inputs: Inputs, state: LinearState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, LinearState | None]:
        # lengths make no difference: padding has the key 0 and the log decay 0, so it adds nothing and changes nothing
        y, new_state = run(inputs, state, default_scale(scale, q), normalize, size)
        return y, new_state if return_state else None

    return over_documents(
        causal(dense, form=form, return_state=return_state),
        (q, k, v, log_decay),
        initial,
        attention_mask=attention_mask,
        cu_seqlens=cu_seqlens,
        lengths=lengths,
    )


@without_autocast
def _per_channel(
    inputs: Inputs, state: LinearState | None, scale: float, normalize: bool, chunk_size: int
) -> tuple[Tensor, LinearState]:
    q, k, v, log_decay = inputs
    assert q is not None and k is not None and v is not None and log_decay is not None
    B, T, H, K = q.shape
    G = k.shape[2]
    dtype = torch.promote_types(q.dtype, torch.float32)
    values = v.to(dtype)
    if normalize:
        values = torch.cat([values, values.new_ones(*values.shape[:-1], 1)], dim=-1)
    q_NRTK = q.to(dtype).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4).flatten(0, 1) * scale
    k_NTK, v_NTW, a_NTK = (x.transpose(1, 2).flatten(0, 1) for x in (k.to(dtype), values, log_decay.to(dtype)))
    W = v_NTW.shape[-1]
    memory_NKW = v_NTW.new_zeros(B * G, K, W) if state is None else state.memory.to(dtype).flatten(0, 1)
    outputs = []
    for start in range(0, T, chunk_size):
        now = slice(start, start + chunk_size)
        pieces = (q_NRTK[:, :, now], k_NTK[:, now], v_NTW[:, now], a_NTK[:, now], memory_NKW)
        if torch.is_grad_enabled():
            y, memory_NKW = checkpoint(_chunk, *pieces, use_reentrant=False)
        else:
            y, memory_NKW = _chunk(*pieces)
        outputs.append(y)
    y = torch.cat(outputs, dim=2).unflatten(0, (B, G)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    if normalize:
        y = safe_divide(y[..., :-1], y[..., -1:])
    return y.to(q.dtype), LinearState(memory_NKW.unflatten(0, (B, G)))


@without_autocast
def _per_channel_natively(
    inputs: Inputs, state: LinearState | None, scale: float, normalize: bool, chunk_size: int
) -> tuple[Tensor, LinearState]:
    tensors = (None if x is None else x.float() for x in inputs)
    memory = None if state is None else state.memory.float()
    y, _, new_memory = native.call("linear", *tensors, memory, scale, 1.0, normalize, chunk_size, True)
    assert inputs[0] is not None
    return y.to(inputs[0].dtype), LinearState(new_memory)


def _chunk(q_NRCK: Tensor, k_NCK: Tensor, v_NCW: Tensor, a_NCK: Tensor, memory_NKW: Tensor) -> tuple[Tensor, Tensor]:
    dtype = q_NRCK.dtype
    sums_NCK = decay.cumulative(a_NCK, 1)
    end_N1K = sums_NCK[:, -1:]
    read_NRCW = torch.einsum("nrck,nkw->nrcw", q_NRCK * decay.factor(sums_NCK, dtype)[:, None], memory_NKW)
    y_NRCW = read_NRCW + torch.einsum("nrcj,njw->nrcw", _within(q_NRCK, k_NCK, sums_NCK), v_NCW)
    left_NCK = k_NCK * decay.factor(end_N1K - sums_NCK, dtype)
    memory_NKW = torch.baddbmm(memory_NKW * decay.factor(end_N1K, dtype).transpose(1, 2), left_NCK.transpose(1, 2), v_NCW)
    return y_NRCW, memory_NKW


def _within(q_NRCK: Tensor, k_NCK: Tensor, sums_NCK: Tensor) -> Tensor:
    """The weights (N,R,C,C) of a chunk's own pairs, by halves."""
    C, dtype = k_NCK.shape[1], q_NRCK.dtype
    if C <= SMALLEST_HALF:
        decay_NKCC = decay.between(sums_NCK.transpose(1, 2), sums_NCK.transpose(1, 2), dtype)
        return torch.einsum("nrck,njk,nkcj->nrcj", q_NRCK, k_NCK, decay_NKCC)
    half = C // 2
    middle_N1K = sums_NCK[:, half - 1 : half]
    first, second = slice(None, half), slice(half, None)
    cross = torch.einsum(
        "nrck,njk->nrcj",
        q_NRCK[:, :, second] * decay.factor(sums_NCK[:, second] - middle_N1K, dtype)[:, None],
        k_NCK[:, first] * decay.factor(middle_N1K - sums_NCK[:, first], dtype),
    )
    top = _within(q_NRCK[:, :, first], k_NCK[:, first], sums_NCK[:, first])
    bottom = _within(q_NRCK[:, :, second], k_NCK[:, second], sums_NCK[:, second])
    top = torch.cat([top, top.new_zeros(*top.shape[:-1], C - half)], dim=-1)
    return torch.cat([top, torch.cat([cross, bottom], dim=-1)], dim=-2)
