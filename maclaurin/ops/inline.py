"""InLine attention: linear attention that divides by nothing, and is injective where softmax is.

    w_ts = (s/t)·φ(q_t)·(φ(k_s) − mean φ(k)) + 1/t        means and t over the tokens that t sees

Weights sum to 1 and may be negative. With φ = identity they are the first-order expansion of softmax(s·q·k) about uniform
attention. Over a whole sequence the centred keys meet the values once. Causally the mean moves with t; it is a running sum
of keys beside the state, and the rest is first-order attention with one more key channel, which holds 1 for every token:

    y_t = Σ_s q'_t·k'_s v_s,    q'_t = [s·φ(q_t)/t, (1 − (s/t)·φ(q_t)·z_t)/t],    k'_s = [φ(k_s), 1],    z_t = Σ_{s≤t} φ(k_s)

Feature maps are applied to q and k before the call.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Self, Unpack

import torch
from torch import Tensor

from maclaurin.ops import checks, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, running_sum, without_autocast
from maclaurin.ops.fields import WHOLE, Axes
from maclaurin.ops.linear import CHUNK, linear_attention
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import LinearState, State, decayed
from maclaurin.ops.tokens import without_padding


@dataclass(frozen=True)
class InlineState(State):
    """What a prefix leaves behind: Σ φ(k) vᵀ, and as its last row Σ v; Σ φ(k); and how many tokens there were."""

    recurrent: Annotated[Tensor, Axes("B G K+1 V")]
    key_sum: Annotated[Tensor, Axes("B G K")]
    count: Annotated[Tensor, Axes("B", WHOLE)]

    def after(self, earlier: Self, transition: Tensor) -> Self:
        """Sums without a decay: the transition is of zeros. Means are made of them where a token looks back."""
        recurrent = decayed(earlier.recurrent, transition) + self.recurrent
        key_sum = decayed(earlier.key_sum, transition) + self.key_sum
        return type(self)(recurrent, key_sum, earlier.count + self.count)


@with_options
def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    state: InlineState | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, InlineState | None]:
    """Causal InLine attention: q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) -> y (B,T,H,V) and the state.

    scale: s above, 1/√K unless given. Other arguments as in `linear_attention`.
    """
    call = Options.of(inline_attention, options)
    if not causal:
        return call.over_whole_documents(partial(bidirectional_inline, scale=scale), (q, k, v), state)
    checks.heads(q, k, v)
    call.check()
    checks.scale(scale)
    checks.sound_state(state, InlineState, q)
    state_shape = (k.shape[2], k.shape[3] + 1, v.shape[3])
    if state is not None and tuple(state.recurrent.shape[1:]) != state_shape:
        raise ValueError(
            f"state must be {state_shape} (heads, key channels + 1, value channels) per sequence, "
            f"got {tuple(state.recurrent.shape[1:])}"
        )
    natively = state is None and call.natively("inline_attention", q)
    engine = _Engine(default_scale(scale, q), chunk_size, call, natively)
    return call.causally(engine.run, (q, k, v), state)


@dataclass(frozen=True)
class _Engine:
    """One call's options. Lengths make no difference to outputs: padding has the key 0 and the value 0."""

    scale: float
    chunk_size: int
    call: Options
    natively: bool

    @without_autocast
    def run(
        self, inputs: Inputs, state: InlineState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, InlineState | None]:
        if state is None and self.natively:
            return self._at_once(inputs, lengths, return_state)
        return _causal(inputs, state, lengths, return_state, scale=self.scale, chunk_size=self.chunk_size, call=self.call)

    def _at_once(self, inputs: Inputs, lengths: Tensor | None, return_state: bool) -> tuple[Tensor, InlineState | None]:
        """In the kernel, which centres the weights of a whole sequence."""
        q, k, v = (x for x in inputs if x is not None)
        chunk = {"chunked": self.chunk_size, "recurrent": 1}.get(self.call.form, native.linear.LONGEST_BLOCK)
        y, _, sums_BGKW = native.call("inline", q.float(), k.float(), v.float(), self.scale, chunk, return_state)
        if not return_state:
            return y.to(q.dtype), None
        values_BG1V = v.float().sum(1)[:, :, None]
        end_B = v.new_full((v.shape[0],), v.shape[1], dtype=torch.long) if lengths is None else lengths.to(torch.long)
        recurrent = torch.cat([sums_BGKW[..., :-1], values_BG1V], dim=2)
        return y.to(q.dtype), InlineState(recurrent, sums_BGKW[..., -1].clone(), end_B)


def _causal(
    inputs: Inputs,
    state: InlineState | None,
    lengths: Tensor | None,
    return_state: bool,
    *,
    scale: float,
    chunk_size: int,
    call: Options,
) -> tuple[Tensor, InlineState | None]:
    q, k, v = (x for x in inputs if x is not None)
    dtype = torch.promote_types(q.dtype, torch.float32)
    q_BTHK, k_BTGK, v_BTGV = (x.to(dtype) for x in (q, k, v))
    count_BT = counts(None if state is None else state.count, q_BTHK)
    z_BTGK = running_sum(k_BTGK)  # padding has the key 0
    if state is not None:
        z_BTGK = z_BTGK + state.key_sum.to(dtype)[:, None]
    per_token_BT11 = count_BT.to(dtype).reciprocal()[..., None, None]
    q_BTHK = q_BTHK * (scale * per_token_BT11)
    offset_BTH1 = per_token_BT11 * (1 - (q_BTHK * repeat_heads(z_BTGK, q.shape[2])).sum(-1, keepdim=True))
    y, inner = linear_attention(
        torch.cat([q_BTHK, offset_BTH1], dim=-1),
        torch.cat([k_BTGK, torch.ones_like(k_BTGK[..., :1])], dim=-1),
        v_BTGV,
        scale=1.0,
        normalize=False,
        state=None if state is None else LinearState(state.recurrent.to(dtype)),
        chunk_size=chunk_size,
        **call.without_documents() | {"lengths": lengths, "return_state": return_state},
    )
    if inner is None:
        return y.to(q.dtype), None
    end = count_BT[:, 0] - 1 + (q.shape[1] if lengths is None else lengths)
    return y.to(q.dtype), InlineState(inner.recurrent, z_BTGK[:, -1].clone(), end)


def bidirectional_inline(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, lengths: Tensor | None = None
) -> Tensor:
    """InLine attention over whole sequences, in linear time: q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) -> (B,T,H,V).

    lengths (B,): how many tokens of each sequence are real; those behind them have no influence and give zero.
    """
    checks.heads(q, k, v)
    checks.scale(scale)
    return _whole(q, k, v, default_scale(scale, q), lengths)


@without_autocast
def _whole(q: Tensor, k: Tensor, v: Tensor, scale: float, lengths: Tensor | None) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32)
    G = k.shape[2]
    q_BTHK, k_BTGK, v_BTGV = (without_padding(x.to(dtype), lengths) for x in (q, k, v))
    centred_BTGK = without_padding(k_BTGK - mean(k_BTGK, lengths), lengths)
    # the 1/N stands with the values, so that sums over a large image stay in range
    v_BTGV = v_BTGV / real_tokens(v_BTGV, lengths)
    state_BGKV = torch.einsum("btgk,btgv->bgkv", centred_BTGK, v_BTGV * scale)
    read = torch.einsum("btgrk,bgkv->btgrv", q_BTHK.unflatten(2, (G, -1)), state_BGKV).flatten(2, 3)
    y = read + repeat_heads(v_BTGV.sum(1, keepdim=True), q.shape[2])
    return without_padding(y, lengths).to(q.dtype)


def mean(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean over the real tokens of x (B, T, ...), which is zero at padding: (B, 1, ...)."""
    return x.sum(1, keepdim=True) / real_tokens(x, lengths)


def real_tokens(x: Tensor, lengths: Tensor | None) -> Tensor | int:
    """How many tokens of each sequence of x (B, T, ...) are real, at least 1, in a shape that divides x."""
    if lengths is None:
        return x.shape[1]
    return lengths.clamp(min=1).view(-1, *(1,) * (x.dim() - 1))


def counts(before: Tensor | None, x: Tensor) -> Tensor:
    """How many tokens each token of x (B, T, ...) sees, itself included: (B, T) int64."""
    B, T = x.shape[:2]
    own = torch.arange(1, T + 1, dtype=torch.long, device=x.device)
    return own.expand(B, T) if before is None else before[:, None] + own
