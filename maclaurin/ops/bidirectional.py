"""Attention over whole sequences: every token sees every token, for encoders and images.

Softmax needs only its mask left out. A mechanism with a decay runs over the sequence and over its reversal, with the same
queries and keys, and a token's weight on itself is counted once; without one every token reads one memory of all tokens.
Sequences that are short beside the memory are summed directly, pair by pair:

    w_ts = f(q_t·k_s)·exp(a_{s+1} + … + a_t) for s <= t,   f(q_t·k_s)·exp(a_t + … + a_{s-1}) for s > t

There is no state: a state is what a prefix leaves behind, and here nothing is a prefix.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels, W = V or V+1

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from maclaurin.ops import checks, decay, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.crossover import longest_direct
from maclaurin.ops.features import Kernel, monomials
from maclaurin.ops.folding import MOST_FEATURES
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.power import power_attention
from maclaurin.ops.tokens import without_padding

Causal = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
SEGMENT = 256  # tokens whose features exist at a time


def bidirectional_softmax(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, lengths: Tensor | None = None
) -> Tensor:
    """Softmax attention without a mask but for padding: q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) -> (B,T,H,V).

    lengths (B,): how many tokens of each row are real; those behind them have no influence and give zero.
    """
    checks.heads(q, k, v)
    checks.number("scale", scale)
    if lengths is None:
        return _softmax(q, k, v, None, default_scale(scale, q))
    q, k, v = (without_padding(x, lengths) for x in (q, k, v))
    real = torch.arange(q.shape[1], device=q.device) < lengths.clamp(min=1)[:, None]  # an empty row sees its own zeros
    return without_padding(_softmax(q, k, v, real, default_scale(scale, q)), lengths)


@without_autocast
def _softmax(q: Tensor, k: Tensor, v: Tensor, real_BT: Tensor | None, scale: float) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype
    q_BHTK, k_BGTK, v_BGTV = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    mask = None if real_BT is None else real_BT[:, None, None, :]
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
    checks.one_of("form", form, checks.FORMS)
    checks.number("scale", scale)
    kernel = Kernel.of(order)
    in_native = _is_native(kernel, order_weights, q, k, log_decay)
    # the kernels take a chunk pair by pair themselves, which pays off where torch would have to make a matrix of decays
    short = q.shape[1] <= longest_direct("torch", kernel.feature_count(q.shape[3])) and (log_decay is None or not in_native)
    if form == "parallel" or (form == "auto" and short):
        return _pair_by_pair(kernel, order_weights, default_scale(scale, q), q, k, v, log_decay, normalize, lengths)
    if in_native and kernel.squared:
        return _natively(q, k, v, log_decay, default_scale(scale, q), normalize, lengths)
    if in_native:
        return _taylor_natively(q, k, v, default_scale(scale, q), normalize, lengths)
    if log_decay is None and order_weights is None and kernel.feature_count(q.shape[3]) <= MOST_FEATURES:
        return _one_power_memory(kernel, default_scale(scale, q), q, k, v, normalize, lengths)
    terms = kernel.orders if isinstance(order, Iterable) else kernel.orders[0]

    def causal(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        y, _ = power_attention(
            q,
            k,
            v,
            log_decay,
            order=terms,
            order_weights=order_weights,
            scale=scale,
            normalize=False,
            return_state=False,
            form=form,
        )
        return y

    def own_weight(q: Tensor, k: Tensor) -> Tensor:
        score_OBTH = (q * repeat_heads(k, q.shape[2])).sum(-1) * default_scale(scale, q)
        return kernel(score_OBTH, None if order_weights is None else order_weights.expand(q.shape[2], -1).T[:, None, None])

    return _both_ways(causal, own_weight, q, k, v, log_decay, normalize, lengths)


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
    """`linear_attention` over whole sequences; log_decay may have an entry a key channel.

    Without a decay every token reads one memory of all tokens, and `form` makes no difference.
    """
    if log_decay is None:
        checks.heads(q, k, v)
        checks.one_of("form", form, checks.FORMS)
        checks.number("scale", scale)
        return _one_memory(q, k, v, default_scale(scale, q), normalize, lengths)

    def causal(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        y, _ = linear_attention(q, k, v, log_decay, scale=scale, normalize=False, return_state=False, form=form)
        return y

    def own_weight(q: Tensor, k: Tensor) -> Tensor:
        return (q * repeat_heads(k, q.shape[2])).sum(-1) * default_scale(scale, q)

    return _both_ways(causal, own_weight, q, k, v, log_decay, normalize, lengths)


def _is_native(kernel: Kernel, order_weights: Tensor | None, q: Tensor, k: Tensor, log_decay: Tensor | None) -> bool:
    if order_weights is not None or q.shape[1] == 0:
        return False
    squared = kernel.squared and (log_decay is None or log_decay.shape[2] == k.shape[2])
    taylor = kernel == Kernel.of((0, 1, 2)) and log_decay is None
    return (squared or taylor) and native.refusal(q, torch.promote_types(q.dtype, torch.float32)) is None


@without_autocast
def _natively(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, normalize: bool, lengths: Tensor | None
) -> Tensor:
    """Keys of padding are zero, and so are their squares."""
    wide = [without_padding(x.float(), lengths) for x in (q, k, v)]
    a = None if log_decay is None else without_padding(log_decay.float(), lengths)
    y, _ = native.call("whole", *wide, a, scale, normalize)
    return without_padding(y, lengths).to(q.dtype)


@without_autocast
def _taylor_natively(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool, lengths: Tensor | None) -> Tensor:
    """1 + x + x²/2 = ((x+1)² + 1)/2: squares with one more channel of ones, and every value once more."""
    ones_q, ones_k = q.new_ones(*q.shape[:3], 1), k.new_ones(*k.shape[:3], 1)
    with_ones = torch.cat([q, ones_q], dim=-1), torch.cat([k * scale, ones_k], dim=-1)
    q_BTHC, k_BTGC, v_BTGW = _wide_with_ones(*with_ones, v, normalize, lengths)
    squares, _ = native.call("whole", q_BTHC, k_BTGC, v_BTGW, None, 1.0, False)
    y = (squares + repeat_heads(v_BTGW.sum(1, keepdim=True), q.shape[2])) / 2
    return _divided(y, normalize, lengths, q.dtype)


@without_autocast
def _pair_by_pair(
    kernel: Kernel,
    order_weights: Tensor | None,
    scale: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    normalize: bool,
    lengths: Tensor | None,
) -> Tensor:
    """The T x T matrix of weights: values of padding, and their counts, are zero."""
    q_BTHK, k_BTGK, v_BTGW = _wide_with_ones(q, k, v, normalize, lengths)
    H = q.shape[2]
    score_BHTS = torch.einsum("bthk,bshk->bhts", q_BTHK * scale, repeat_heads(k_BTGK, H))
    weights_O = None if order_weights is None else order_weights.expand(H, -1).T[:, None, :, None, None]
    weight_BHTS = kernel(score_BHTS, weights_O)
    if log_decay is not None:
        a_BHT = repeat_heads(without_padding(log_decay, lengths), H).transpose(1, 2).to(decay.widest(q.device))
        a_BHT = a_BHT.clamp(min=decay.SMALLEST_LOG_DECAY)
        sums_BHT = a_BHT.cumsum(2)
        before_BHT = sums_BHT - a_BHT
        # towards later tokens the decays of both ends change roles
        earlier, later = decay.between(sums_BHT, sums_BHT, q_BTHK.dtype), decay.between(before_BHT, before_BHT, q_BTHK.dtype)
        weight_BHTS = weight_BHTS * (earlier.tril() + later.transpose(-1, -2).triu(1))
    y = torch.einsum("bhts,bshw->bthw", weight_BHTS, repeat_heads(v_BTGW, H))
    return _divided(y, normalize, lengths, q.dtype)


@without_autocast
def _one_power_memory(
    kernel: Kernel, scale: float, q: Tensor, k: Tensor, v: Tensor, normalize: bool, lengths: Tensor | None
) -> Tensor:
    """Segment by segment, so that features are used while they are in the cache."""
    q_BTHK, k_BTGK, v_BTGW = _wide_with_ones(q, k, v, normalize, lengths)
    B, _T, G = k.shape[:3]
    k_NKT, v_NTW = (k_BTGK * scale).permute(0, 2, 3, 1).flatten(0, 1), v_BTGW.transpose(1, 2).flatten(0, 1)
    memory_NFW: Tensor | None = None
    for k_NKS, v_NSW in zip(k_NKT.split(SEGMENT, dim=2), v_NTW.split(SEGMENT, dim=1), strict=True):
        added = monomials(k_NKS.contiguous(), kernel.orders) @ v_NSW
        memory_NFW = added if memory_NFW is None else memory_NFW + added
    assert memory_NFW is not None
    memory_NWF = (memory_NFW * kernel.feature_weights(q.shape[3], memory_NFW)[:, None]).transpose(1, 2)
    q_NKRT = q_BTHK.unflatten(2, (G, -1)).permute(0, 2, 4, 3, 1).flatten(0, 1)
    pieces = []
    for q_NKRS in q_NKRT.split(SEGMENT, dim=3):
        y_NWS = memory_NWF @ monomials(q_NKRS.flatten(2).contiguous(), kernel.orders)
        if normalize:
            y_NWS = safe_divide(y_NWS[:, :-1], y_NWS[:, -1:])
        pieces.append(y_NWS.unflatten(2, q_NKRS.shape[2:]))
    y_BTHV = torch.cat(pieces, dim=3).unflatten(0, (B, G)).permute(0, 4, 1, 3, 2).flatten(2, 3)
    return without_padding(y_BTHV, lengths).to(q.dtype)


@without_autocast
def _one_memory(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool, lengths: Tensor | None) -> Tensor:
    q_BTHK, k_BTGK, v_BTGW = _wide_with_ones(q, k, v, normalize, lengths)
    memory_BGKW = torch.einsum("bsgk,bsgw->bgkw", k_BTGK * scale, v_BTGW)
    q_BTGRK = q_BTHK.unflatten(2, (k.shape[2], -1))
    y = torch.einsum("btgrk,bgkw->btgrw", q_BTGRK, memory_BGKW).flatten(2, 3)
    return _divided(y, normalize, lengths, q.dtype)


def _both_ways(
    causal: Causal,
    own_weight: Callable[[Tensor, Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    normalize: bool,
    lengths: Tensor | None,
) -> Tensor:
    """Padding is neutral at either end: its keys, values and log decays are zero, and so is its count."""
    q_BTHK, k_BTGK, v_BTGW = _wide_with_ones(q, k, v, normalize, lengths)
    a = None if log_decay is None else without_padding(log_decay, lengths)

    def reverse(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flip(1)

    forwards = causal(q_BTHK, k_BTGK, v_BTGW, a)
    backwards = causal(q_BTHK.flip(1), k_BTGK.flip(1), v_BTGW.flip(1), reverse(a)).flip(1)
    own = own_weight(q_BTHK, k_BTGK)[..., None] * repeat_heads(v_BTGW, q.shape[2])
    return _divided(forwards + backwards - own, normalize, lengths, q.dtype)


def _wide_with_ones(q: Tensor, k: Tensor, v: Tensor, normalize: bool, lengths: Tensor | None) -> tuple[Tensor, ...]:
    """In float32 at least, zero at padding; where outputs are normalised, values with a column that counts the tokens."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    wide = [x.to(dtype) for x in (q, k, v)]
    if normalize:
        wide[2] = torch.cat([wide[2], wide[2].new_ones(*v.shape[:-1], 1)], dim=-1)
    return tuple(without_padding(x, lengths) for x in wide)


def _divided(y_BTHW: Tensor, normalize: bool, lengths: Tensor | None, dtype: torch.dtype) -> Tensor:
    if normalize:
        y_BTHW = safe_divide(y_BTHW[..., :-1], y_BTHW[..., -1:])
    return without_padding(y_BTHW, lengths).to(dtype)
