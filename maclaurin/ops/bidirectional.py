"""Attention over whole sequences: every token sees every token, for encoders and images.

Softmax needs only its mask left out. A mechanism with a decay runs over the sequence and over its reversal, with the same
queries and keys, and a token's weight on itself is counted once; without one every token reads one state of all tokens.
Sequences that are short beside the state are summed directly, pair by pair:

    w_ts = f(q_t·k_s)·exp(a_{s+1} + … + a_t) for s <= t,   f(q_t·k_s)·exp(a_t + … + a_{s-1}) for s > t

There is no state: a state is what a prefix leaves behind, and here nothing is a prefix.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels, W = V or V+1

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from maclaurin.common.arguments import one_of
from maclaurin.ops import checks, decay, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.backends import note, reason_for_torch
from maclaurin.ops.crossover import longest_direct, side
from maclaurin.ops.features import Kernel, monomials
from maclaurin.ops.folding import MOST_FEATURES
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.power import power_attention
from maclaurin.ops.power_batched import EXPANSION_BYTES
from maclaurin.ops.rounding import above_rounding
from maclaurin.ops.tokens import without_padding

Causal = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
SEGMENT = 256  # tokens whose features exist at a time on a CPU


def bidirectional_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Softmax attention without a mask but for padding: q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) -> (B,T,H,V).

    bias (H,T,T) or (B,H,T,T) is added to the scores; without lengths only.
    lengths (B,): how many tokens of each sequence are real; those behind them have no influence and give zero.
    """
    checks.heads(q, k, v)
    checks.scale(scale)
    if lengths is None:
        return _softmax(q, k, v, bias, default_scale(scale, q))
    if bias is not None:
        raise ValueError("bias needs sequences of one length, without padding: lengths must be None")
    q, k, v = (without_padding(x, lengths) for x in (q, k, v))
    seen = lengths.clamp(min=1)  # an empty sequence sees its own zeros
    real = torch.arange(q.shape[1], dtype=torch.long, device=q.device) < seen[:, None]
    return without_padding(_softmax(q, k, v, real[:, None, None, :], default_scale(scale, q)), lengths)


@without_autocast
def _softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """mask: (B,1,1,T), False where nothing is seen, or numbers that are added to the scores."""
    dtype = torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype
    q_BHTK, k_BGTK, v_BGTV = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    grouped = q.shape[2] != k.shape[2]
    y = scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTV, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return y.transpose(1, 2).to(q.dtype)


def bidirectional_power(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    order: int | Iterable[int] = 2,
    order_weights: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = True,
    form: str = "auto",
    lengths: Tensor | None = None,
) -> Tensor:
    """`power_attention` over whole sequences, in linear time. Arguments as there and in `bidirectional_softmax`."""
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k)
    one_of("form", form, checks.FORMS)
    checks.scale(scale)
    kernel = Kernel.of(order)
    if kernel == Kernel.of(1) and order_weights is None:
        return bidirectional_linear(q, k, v, log_decay, scale=scale, normalize=normalize, form=form, lengths=lengths)
    features = kernel.feature_count(q.shape[3])
    call = _Call.of(q, k, v, log_decay, scale, normalize, lengths)
    pair_by_pair = form == "parallel" or (form == "auto" and q.shape[1] <= longest_direct("torch", features))
    reason = _reason_for_torch(kernel, order_weights, call, form, pair_by_pair)
    note("bidirectional_power", "parallel" if reason is not None and pair_by_pair else "chunked", reason)
    if reason is None:
        return _squares_natively(call) if kernel.squared else _taylor_natively(call)
    if pair_by_pair:
        return _pair_by_pair(call, kernel, order_weights)
    if log_decay is None and order_weights is None and features <= MOST_FEATURES:
        return _one_power_state(call, kernel)
    terms = kernel.orders if isinstance(order, Iterable) else kernel.orders[0]

    def causal(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        y, _ = power_attention(
            q,
            k,
            v,
            log_decay,
            order=terms,
            order_weights=order_weights,
            scale=call.scale,
            normalize=False,
            return_state=False,
            form=form,
        )
        return y

    weights_O = None if order_weights is None else order_weights.expand(q.shape[2], -1).T[:, None, None]
    return _both_ways(call, causal, lambda score_BTH: kernel(score_BTH, weights_O))


def bidirectional_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    normalize: bool = True,
    form: str = "auto",
    lengths: Tensor | None = None,
) -> Tensor:
    """`linear_attention` over whole sequences; log_decay may have an entry per key channel.

    Without a decay every token reads one state of all tokens, in the forms "chunked" and "recurrent" alike.
    """
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k, per_channel=True)
    one_of("form", form, checks.FORMS)
    checks.scale(scale)
    call = _Call.of(q, k, v, log_decay, scale, normalize, lengths)
    if log_decay is None or log_decay.dim() == 3:  # a decay per channel is not one number per pair
        if form == "auto":
            form = "parallel" if q.shape[1] <= _longest_direct_of_first_order(call) else "chunked"
        if form == "parallel" or log_decay is None:
            note("bidirectional_linear", form, "whole sequences of first order have no kernel but that of a decay")
        if form == "parallel":
            return _pair_by_pair(call, Kernel.of(1))
    if log_decay is None:
        return _one_state(call)

    def causal(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        y, _ = linear_attention(q, k, v, log_decay, scale=call.scale, normalize=False, return_state=False, form=form)
        return y

    return _both_ways(call, causal, lambda score_BTH: score_BTH)


class _Call(NamedTuple):
    """One call, padding being zero: without influence, and neutral at either end of a sequence."""

    q: Tensor  # (B,T,H,K), in float32 at least, as all of them
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    scale: float
    normalize: bool
    lengths: Tensor | None
    dtype: torch.dtype  # of the result

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        scale: float | None,
        normalize: bool,
        lengths: Tensor | None,
    ) -> _Call:
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k, v = (without_padding(x.to(wide), lengths) for x in (q, k, v))
        a = None if log_decay is None else without_padding(log_decay, lengths)
        return cls(q, k, v, a, default_scale(scale, q), normalize, lengths, dtype)

    def scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale

    def counted_values(self) -> Tensor:
        """v (B,T,G,W); where outputs are normalised, with a column that counts the tokens."""
        if not self.normalize:
            return self.v
        ones = self.v.new_ones(*self.v.shape[:-1], 1)
        return torch.cat([self.v, without_padding(ones, self.lengths)], dim=-1)

    def divided(self, y_BTHW: Tensor) -> Tensor:
        """The output of sums of such values."""
        return self.output(safe_divide(y_BTHW[..., :-1], y_BTHW[..., -1:]) if self.normalize else y_BTHW)

    def output(self, y: Tensor) -> Tensor:
        return without_padding(y, self.lengths).to(self.dtype)


def _longest_direct_of_first_order(call: _Call) -> int:
    features = side(call.k.shape[3], call.v.shape[3])
    if call.log_decay is None:
        # a state is made once for the query heads of a group, and read by each of them
        return longest_direct("one state", features * (1 + call.k.shape[2] / call.q.shape[2]) / 2)
    return longest_direct(
        "native decay" if reason_for_torch("auto", call.q, call.q.dtype) is None else "torch decay", features
    )


def _reason_for_torch(
    kernel: Kernel, order_weights: Tensor | None, call: _Call, form: str, pair_by_pair: bool
) -> str | None:
    """The kernels take a chunk pair by pair themselves, which pays off where torch would have to make a matrix of decays."""
    a = call.log_decay
    squared = kernel.squared and (a is None or a.shape[2] == call.k.shape[2])
    taylor = kernel == Kernel.of((0, 1, 2)) and a is None
    no_kernel = None
    if order_weights is not None or not (squared or taylor):
        no_kernel = "order=2 with a decay per key-value head or none, or order=(0, 1, 2) without one, and no order_weights"
    elif form == "parallel" or call.q.shape[1] == 0:
        no_kernel = "another form than 'parallel' and at least one token"
    faster = "PyTorch's matrix product is faster for so few tokens" if pair_by_pair and a is None else None
    return reason_for_torch("auto", call.q, call.q.dtype, no_kernel=no_kernel, torch_is_faster=faster)


@without_autocast
def _squares_natively(call: _Call) -> Tensor:
    """Keys of padding are zero, and so are their squares."""
    a = None if call.log_decay is None else call.log_decay.float()
    y, _ = native.call("whole", call.q, call.k, call.v, a, call.scale, call.normalize)
    return call.output(y)


@without_autocast
def _taylor_natively(call: _Call) -> Tensor:
    """1 + x + x²/2 = ((x+1)² + 1)/2: squares with one more channel of ones, and every value once more."""
    q, k = (torch.cat([x, x.new_ones(*x.shape[:3], 1)], dim=-1) for x in (call.q, call.k * call.scale))
    v_BTGW = call.counted_values()
    squares, _ = native.call("whole", q, without_padding(k, call.lengths), v_BTGW, None, 1.0, False)
    return call.divided((squares + repeat_heads(v_BTGW.sum(1, keepdim=True), q.shape[2])) / 2)


@without_autocast
def _pair_by_pair(call: _Call, kernel: Kernel, order_weights: Tensor | None = None) -> Tensor:
    """The T x T matrix of weights: values of padding, and their counts, are zero."""
    _, T, H, K = call.q.shape
    G = call.k.shape[2]
    # the scale goes to the fewer numbers
    q_BTGRK = (call.scaled(call.q) if K < T else call.q).unflatten(2, (G, -1))
    # time before the heads of a group, as in q: then heads that share one key-value head need no copy
    score_BGTRS = torch.einsum("btgrk,bsgk->bgtrs", q_BTGRK, call.k)
    if K >= T:
        score_BGTRS = call.scaled(score_BGTRS)
    weights_O = None if order_weights is None else order_weights.expand(H, -1).T.reshape(-1, 1, G, 1, H // G, 1)
    weight_BGTRS = kernel(score_BGTRS, weights_O)
    if call.log_decay is not None:
        a_BGRT = call.log_decay.unflatten(2, (G, -1)).permute(0, 2, 3, 1)
        weight_BGTRS = weight_BGTRS * _decay_between(a_BGRT, call.q.dtype).transpose(2, 3)
    return call.divided(torch.einsum("bgtrs,bsgw->btgrw", weight_BGTRS, call.counted_values()).flatten(2, 3))


def _decay_between(a_BGRT: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(a_{s+1} + … + a_t) up to the diagonal and exp(a_t + … + a_{s-1}) above it, as (B,G,R,T,S)."""
    a_BGRT = a_BGRT.to(decay.widest(a_BGRT.device)).clamp(min=decay.SMALLEST_LOG_DECAY)
    to_BGRT = a_BGRT.cumsum(-1)
    before_BGRT = to_BGRT - a_BGRT
    earlier_TS = decay.causal_mask(a_BGRT.shape[-1], a_BGRT.shape[-1], a_BGRT.device)
    sums_BGRTS = torch.where(
        earlier_TS,
        to_BGRT[..., :, None] - to_BGRT[..., None, :],
        before_BGRT[..., None, :] - before_BGRT[..., :, None],
    )
    return decay.factor(sums_BGRTS, dtype)


@without_autocast
def _one_power_state(call: _Call, kernel: Kernel) -> Tensor:
    """Segment by segment, so that features are used while they are in the cache; elsewhere as many as there is room for."""
    B, T, G = call.k.shape[:3]
    segment = SEGMENT
    if not call.q.is_cpu:
        per_token = B * call.q.shape[2] * kernel.feature_count(call.q.shape[3]) * call.q.element_size()
        segment = min(T, max(SEGMENT, EXPANSION_BYTES // per_token))
    k_NKT = (call.k * call.scale).permute(0, 2, 3, 1).flatten(0, 1)
    v_NTW = call.counted_values().transpose(1, 2).flatten(0, 1)
    state_NFW: Tensor | None = None
    for k_NKS, v_NSW in zip(k_NKT.split(segment, dim=2), v_NTW.split(segment, dim=1), strict=True):
        added = monomials(k_NKS.contiguous(), kernel.orders) @ v_NSW
        state_NFW = added if state_NFW is None else state_NFW + added
    assert state_NFW is not None
    state_NWF = (state_NFW * kernel.feature_weights(call.q.shape[3], state_NFW)[:, None]).transpose(1, 2)
    q_NKRT = call.q.unflatten(2, (G, -1)).permute(0, 2, 4, 3, 1).flatten(0, 1)
    pieces = []
    for q_NKRS in q_NKRT.split(segment, dim=3):
        q_NKS = q_NKRS.flatten(2).contiguous()
        y_NWS = state_NWF @ monomials(q_NKS, kernel.orders)
        if call.normalize and kernel.never_negative:
            used_NS1 = above_rounding(y_NWS[:, -1, :, None], q_NKS.transpose(1, 2), state_NFW[..., -1], kernel, None)
            y_NWS = y_NWS * used_NS1.transpose(1, 2)
        pieces.append(y_NWS.unflatten(2, q_NKRS.shape[2:]))
    return call.divided(torch.cat(pieces, dim=3).unflatten(0, (B, G)).permute(0, 4, 1, 3, 2).flatten(2, 3))


@without_autocast
def _one_state(call: _Call) -> Tensor:
    state_BGKW = call.scaled(torch.einsum("bsgk,bsgw->bgkw", call.k, call.counted_values()))
    q_BTGRK = call.q.unflatten(2, (call.k.shape[2], -1))
    return call.divided(torch.einsum("btgrk,bgkw->btgrw", q_BTGRK, state_BGKW).flatten(2, 3))


def _both_ways(call: _Call, causal: Causal, weight_of: Callable[[Tensor], Tensor]) -> Tensor:
    """The sequence, its reversal, and once less a token's weight on itself."""
    q, k, v_BTGW, a = call.q, call.k, call.counted_values(), call.log_decay
    turned = (q.flip(1), k.flip(1), v_BTGW.flip(1), None if a is None else a.flip(1))
    if q.is_cpu:
        forwards, backwards = causal(q, k, v_BTGW, a), causal(*turned)
    else:  # one batch of both: half the launches
        pairs = zip((q, k, v_BTGW, a), turned, strict=True)
        there_and_back = (None if x is None or y is None else torch.cat([x, y]) for x, y in pairs)
        forwards, backwards = causal(*there_and_back).chunk(2)  # type: ignore[arg-type]
    score_BTH = (q * repeat_heads(k, q.shape[2])).sum(-1) * call.scale
    own = weight_of(score_BTH)[..., None] * repeat_heads(v_BTGW, q.shape[2])
    return call.divided(forwards + backwards.flip(1) - own)
