"""Power attention in the kernels: second order in its own, orders up to 2 as a sum of second and first order, and the
whole series 1 + x + x²/2, whose outputs are averages, as squares of one more channel (`native/series.py`).

    f(x) = w_0 + w_1 x + w_2 x²/2,   x = scale·q·k:   the first two terms are (w_0, w_1 q)·(1, scale·k), of first order

Numerator and denominator are sums over the terms, so each kernel sums values beside a column that counts the tokens, and
the sums are divided at the end. A state is the rows of both kernels, one after the other, as the torch backend has them.
"""

# B batch, T new tokens, S slots (kept and new), H heads, G key-value heads, K, V channels, W = V or V+1, O orders

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops import gpu, linear, native
from maclaurin.ops.features import Kernel
from maclaurin.ops.one_operator import is_unrolled
from maclaurin.ops.tokens import Tokens

Found = tuple[Tensor, Tensor | None]  # outputs, and the recurrent state
Fold = Callable[[], Tensor]  # makes a recurrent state


@dataclass(frozen=True)
class Policy:
    """How a call goes. folded: the state is returned as it stands after this many slots, unchanged for 0."""

    scale: float
    normalize: bool
    chunk_size: int
    form: str
    folded: int
    through_state: bool


def tasks_in_chunks(q: Tensor, v: Tensor, *, gradients: bool) -> int:
    """That threads can share: forwards the query heads, in pieces of 32 columns of values, backwards two walks for each
    key-value head, which take the longer part of both."""
    (B, _, H, _), (G, V) = q.shape, v.shape[2:]
    return 2 * B * G if gradients else B * H * max(1, V // 32)


def with_lazy_fold(q: Tensor, tokens: Tokens, policy: Policy) -> tuple[Tensor, Fold]:
    """The direct sum over all keys, and what folds the first ones when somebody asks: an answer does not wait for it."""
    q, k, v, _ = _single(q, tokens.keys, tokens.values, None)
    y, _ = native.call("quadratic", q, k, v, tokens.log_decay, policy.scale, False, policy.normalize, 0)
    return y, lazy_fold(q.shape[2], k, v, tokens.log_decay, policy)


def lazy_fold(heads: int, k: Tensor, v: Tensor, log_decay: Tensor | None, policy: Policy) -> Fold:
    """Of the first keys, copied: the caller may change its own."""
    now = slice(policy.folded)
    own_a = None if log_decay is None else log_decay[:, now].clone()
    return partial(_fold, heads, k[:, now].clone(), v[:, now].clone(), own_a, policy)


def _fold(heads: int, k: Tensor, v: Tensor, log_decay: Tensor | None, policy: Policy) -> Tensor:
    nobody = k.new_empty(k.shape[0], 0, heads, k.shape[3])
    options = (policy.scale, policy.normalize, policy.chunk_size, k.shape[1])
    recurrent: Tensor = native.call("chunked", nobody, k, v, log_decay, None, *options)[2]
    return recurrent


def second_order(q: Tensor, tokens: Tokens, recurrent: Tensor | None, policy: Policy) -> Found:
    """Padding needs no mask: the score of a key of zeros is zero."""
    q, k, v, recurrent = _single(q, tokens.keys, tokens.values, recurrent)
    folded = policy.folded
    options = (policy.scale, policy.normalize, policy.chunk_size, folded)
    if policy.form == "auto" and recurrent is None and is_unrolled(q):
        y, _ = torch.ops.maclaurin.squared(q, k, v, tokens.log_decay, *options[:3])
    elif policy.through_state:
        inputs = (q, k, v, tokens.log_decay, recurrent)
        if with_gradients := q.shape[1] == 1 < tokens.slots and native.needs_gradients(inputs):
            # the kernel of one token meets buffered ones apart from the recurrent state, the backward of chunks within
            q = pad(q, (0, 0, 0, 0, tokens.slots - 1, 0))
        y, _, new_state = native.call("chunked", q, k, v, tokens.log_decay, recurrent, *options)
        return y[:, -1:] if with_gradients else y, new_state if folded else recurrent
    else:
        y, _ = native.call("quadratic", q, k, v, tokens.log_decay, policy.scale, False, policy.normalize, 0)
    if folded:
        a = None if tokens.log_decay is None else tokens.log_decay[:, :folded]
        recurrent = _fold(q.shape[2], k[:, :folded], v[:, :folded], a, policy)
    return y, recurrent


def whole_series(q: Tensor, tokens: Tokens, recurrent: Tensor | None, policy: Policy) -> Found:
    """Weights 1 + x + x²/2. The constant channel of padding is zero, and so is its weight."""
    q, k, v, recurrent = _single(q, tokens.keys, tokens.values, recurrent)
    root = 2**-0.25
    ones, real = k.new_full(k.shape[:3], root), tokens.real()
    constant = ones if real is None else ones * real[..., None]
    q, k = pad(q * root, (1, 0), value=root), torch.cat([constant[..., None], k * (policy.scale * root)], dim=-1)
    T, S, folded = q.shape[1], tokens.slots, policy.folded
    direct = not policy.through_state and not is_unrolled(q)
    inputs = (q, k, v, tokens.log_decay, recurrent)
    options = (1.0, policy.normalize, policy.chunk_size)
    if direct and folded:  # the state is a call of its own, without queries
        a = None if tokens.log_decay is None else tokens.log_decay[:, :folded]
        y, *_ = native.call("series", *inputs, *options, 0, True)
        nobody = q[:, :0]
        return y, native.call("series", nobody, k[:, :folded], v[:, :folded], a, None, *options, folded, False)[2]
    if T == 1 < S and recurrent is not None and native.needs_gradients(inputs):
        inputs = (pad(q, (0, 0, 0, 0, S - 1, 0)), *inputs[1:])  # as in `second_order`
    y, _, state = native.call("series", *inputs, *options, folded, direct)
    return y[:, -T:], state if folded else recurrent


def sums_up_to_second_order(
    q: Tensor, tokens: Tokens, recurrent: Tensor | None, kernel: Kernel, weights_HO: Tensor | None, policy: Policy
) -> Found:
    """Sums of weighted values for a kernel of orders up to 2, not divided: what counts tokens is among the values."""
    policy = replace(policy, normalize=False)
    # once for both kernels, so that their gradients are added before they are rounded
    q, keys, values, recurrent = _single(q, tokens.keys, tokens.values, recurrent)
    tokens = replace(tokens, keys=keys, values=values)
    weights_HO = None if weights_HO is None else weights_HO.float()
    lower = sum(kernel.feature_counts(q.shape[3])[:-1])
    rows = (None, None) if recurrent is None else (recurrent[:, :, :lower], recurrent[:, :, lower:])
    root = kernel.coefficients[-1] ** 0.5
    # a root of the coefficient is in the state, and so on the scaled keys, of which there are two; the other is left
    y_BTHW, state = second_order(q, tokens, rows[1], replace(policy, scale=policy.scale * root**0.5))
    y_BTHW = y_BTHW * root if weights_HO is None else y_BTHW * (weights_HO[:, -1:] * root)
    if not lower:
        return y_BTHW, state
    below_BTHW, state_below = _up_to_first_order(q, tokens, rows[0], kernel, weights_HO, policy)
    if not policy.folded:
        return y_BTHW + below_BTHW, recurrent
    assert state_below is not None and state is not None
    return y_BTHW + below_BTHW, torch.cat([state_below, state], dim=2)


def _up_to_first_order(
    q: Tensor, tokens: Tokens, recurrent: Tensor | None, kernel: Kernel, weights_HO: Tensor | None, policy: Policy
) -> Found:
    k, v = tokens.keys, tokens.values
    T, S, folded = q.shape[1], tokens.slots, policy.folded
    of_queries, of_keys = {0: torch.ones_like(q[..., :1]), 1: q}, {0: torch.ones_like(k[..., :1]), 1: k * policy.scale}
    terms = list(enumerate(kernel.orders[:-1]))
    weighed = [of_queries[n] if weights_HO is None else of_queries[n] * weights_HO[:, at, None] for at, n in terms]
    # slots before the first query have a query of zeros, whose output nobody reads
    q, k = _joined(weighed, -1), _joined([of_keys[n] for _, n in terms], -1)
    q = q if S == T else pad(q, (0, 0, 0, 0, S - T, 0))
    chunk = {"chunked": policy.chunk_size, "recurrent": 1}.get(policy.form, native.linear.LONGEST_BLOCK)
    outputs = []
    after = recurrent
    for part, keep in ((slice(0, folded), True), (slice(folded, S), False)):
        if part.start == part.stop:
            continue
        a = None if tokens.log_decay is None else tokens.log_decay[:, part].float()
        tokens_now = (q[:, part], k[:, part], v[:, part], a, after)
        if gpu.runs_on(q):
            y, state = linear.sums(*tokens_now, keep)
        else:
            y, _, state = native.call("linear", *tokens_now, 1.0, 1.0, False, chunk, keep)
        outputs.append(y)
        after = state if keep else after
    return _joined(outputs, 1)[:, S - T :], after


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """torch.cat, which would copy a single part as well."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _single(q: Tensor, k: Tensor, v: Tensor, recurrent: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """In float32, or on a GPU in what the queries are: its kernels multiply bfloat16 and sum in float32."""
    dtype = q.dtype if gpu.runs_on(q) else torch.float32
    return q.to(dtype), k.to(dtype), v.to(dtype), None if recurrent is None else recurrent.float()
