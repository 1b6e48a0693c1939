"""Softmax attention, with what the thesis varies about it: a decay, another divisor, capped scores, a window.

All orders of the series at once have no finite state, so the state is the keys and values (the last window-1 of them where
there is a window). The three forms do the same sums: `parallel` at once, `chunked` for blocks of queries that are computed
again backwards, `recurrent` query by query. `auto` calls PyTorch's own fused attention where that computes the same thing,
and the native kernel where there is a decay.
"""

# B batch, T new tokens, S slots (kept and new), H heads, G key-value heads, R = H/G, N = B·G, K, V

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from maclaurin.common.arguments import at_least_one, number, one_of
from maclaurin.ops import checks, decay, gpu
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.backends import note, reason_for_torch
from maclaurin.ops.blocks import over_query_blocks, queries_at_once, slices
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs, token_by_token
from maclaurin.ops.states import StandIn, TokenState
from maclaurin.ops.tokens import Tokens
from maclaurin.ops.transforms import is_transformed

BLOCK = 256
NUMERATORS = ("exp", "relu")
DIVISORS = ("sum", "floored-sum", "count", "none")
SMALLEST_LOG_DECAY = -1e5  # far below -750, because here a decay competes with scores, which may be large themselves


@with_options
def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    window: int | None = None,
    numerator: str = "exp",
    divisor: str = "sum",
    detach_divisor: bool = False,
    divisor_epsilon: float = 0.0,
    score_cap: float | None = None,
    scale: float | None = None,
    causal: bool = True,
    state: TokenState | None = None,
    chunk_size: int = BLOCK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, TokenState | None]:
    """Causal attention with the weights exp(min(scale·q_t·k_s, score_cap) + a_{s+1} + … + a_t), divided by their sum.

    q (B,T,H,K), k (B,T,G,K), v (B,T,G,V); log_decay a (B,T,G) or (B,T,H), <= 0, is a bias on the scores.
    window: how many tokens a query sees, itself included.
    numerator: "exp", or "relu" of the score. divisor: "sum" of the weights, "floored-sum" (at least 1), "count" of the
    visible keys, "none". detach_divisor: no gradient flows through the divisor. divisor_epsilon is added to it.
    backend: "native" (C++ on a CPU) or "triton" (on a GPU, also with a window) for plain weights with or without decay,
    "torch", or "auto".
    Other arguments as in `power_attention` and `Options`.
    """
    if isinstance(state, StandIn):
        return state.step(q, k, v, log_decay)
    call = Options.of(softmax_attention, options)
    if not causal:
        other = (numerator, divisor, divisor_epsilon, score_cap) != ("exp", "sum", 0, None)
        if log_decay is not None or window is not None or other:
            raise ValueError("causal=False needs plain softmax: no log_decay, window, score_cap, or other weights")
        from maclaurin.ops.bidirectional import bidirectional_softmax

        return call.over_whole_documents(partial(bidirectional_softmax, scale=scale), (q, k, v), state)
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k)
    call.check()
    checks.scale(scale)
    checks.sound_state(state, TokenState, q)
    weights = _Weights(default_scale(scale, q), window, numerator, divisor, detach_divisor, divisor_epsilon, score_cap)
    weights.check()
    at_least_one("chunk_size", chunk_size)
    if log_decay is not None and log_decay.shape[2] != k.shape[2]:
        k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    checks.token_state(state, k, v)

    def dense(
        inputs: Inputs, state: TokenState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, TokenState | None]:
        return _dense(weights, inputs, state, lengths, call.form, call.backend, chunk_size, return_state)

    return call.causally(dense, (q, k, v, log_decay), state, forgets=window is not None)


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class _Weights:
    scale: float
    window: int | None
    numerator: str
    divisor: str
    detach_divisor: bool
    divisor_epsilon: float
    score_cap: float | None

    def check(self) -> None:
        one_of("numerator", self.numerator, NUMERATORS)
        one_of("divisor", self.divisor, DIVISORS)
        number("score_cap", self.score_cap)
        number("divisor_epsilon", self.divisor_epsilon)
        if self.window is not None:
            at_least_one("window", self.window)

    def values(self) -> tuple[Any, ...]:
        """In the order of the fields; `astuple` copies, which torch 2.9 cannot compile."""
        judged = (self.numerator, self.divisor, self.detach_divisor, self.divisor_epsilon, self.score_cap)
        return (self.scale, self.window, *judged)

    @property
    def plain(self) -> bool:
        changed = self.detach_divisor or self.divisor_epsilon or self.score_cap is not None
        return self.numerator == "exp" and self.divisor == "sum" and not changed

    @property
    def fused(self) -> bool:
        """Whether PyTorch's own attention computes it. It multiplies a mask of -inf by the scale: not by 0 or less."""
        return self.plain and self.scale > torch.finfo(torch.float32).tiny

    def first_seen(self, query: int) -> int:
        """The first key that the query at that slot sees."""
        return 0 if self.window is None else max(0, query - self.window + 1)

    def attend(self, q_NRTK: Tensor, k_NSK: Tensor, v_NSV: Tensor, a_NS: Tensor | None, real_NS: Tensor | None) -> Tensor:
        T, S = q_NRTK.shape[2], k_NSK.shape[1]
        visible = decay.causal_mask(T, S, q_NRTK.device, self.window)
        if real_NS is not None:
            visible = visible & real_NS[:, None, None, :]
        score_NRTS = torch.einsum("nrtk,nsk->nrts", q_NRTK, k_NSK) * self.scale
        if self.score_cap is not None:
            score_NRTS = score_NRTS.clamp(max=self.score_cap)
        log_decay_N1TS = None
        if a_NS is not None:
            sums_NS = decay.cumulative(a_NS, 1, SMALLEST_LOG_DECAY)
            log_decay_N1TS = (sums_NS[:, None, S - T :, None] - sums_NS[:, None, None, :]).to(score_NRTS.dtype)
        weight_NRTS, one = self._numerator(score_NRTS, log_decay_N1TS, visible)
        total = weight_NRTS.sum(-1, keepdim=True)
        if self.divisor == "floored-sum":
            total = torch.maximum(total, one)
        elif self.divisor == "count":
            total = visible.sum(-1, keepdim=True) * one
        elif self.divisor == "none":
            total = one
        if self.divisor_epsilon:
            total = total + self.divisor_epsilon * one
        if self.detach_divisor:
            total = total.detach()
        return safe_divide(torch.einsum("nrts,nsv->nrtv", weight_NRTS, v_NSV), total)

    def _numerator(self, score: Tensor, log_decay: Tensor | None, visible: Tensor) -> tuple[Tensor, Tensor]:
        """The weights, and what the number 1 is in their unit: rows are shifted so that exp never overflows."""
        if self.numerator == "relu":
            weight = score.relu() if log_decay is None else score.relu() * log_decay.masked_fill(~visible, 0).exp()
            return weight.masked_fill(~visible, 0), torch.ones_like(score[..., :1])
        if log_decay is not None:
            score = score + log_decay
        score = score.masked_fill(~visible, -math.inf)
        if self.divisor in ("count", "none"):
            return score.exp(), torch.ones_like(score[..., :1])
        shift = score.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(score.dtype).min)
        if self.divisor == "floored-sum":
            shift = shift.clamp(min=0)
        return (score - shift).exp(), (-shift).exp()


@without_autocast
def _dense(
    weights: _Weights,
    inputs: Inputs,
    state: TokenState | None,
    lengths: Tensor | None,
    form: str,
    backend: str,
    chunk_size: int,
    return_state: bool,
) -> tuple[Tensor, TokenState | None]:
    q, k, v, log_decay = inputs
    assert q is not None and k is not None and v is not None
    T = q.shape[1]
    if form == "recurrent" and T > 1:
        step = partial(_dense, weights, form=form, backend=backend, chunk_size=chunk_size, return_state=True)
        y, state = token_by_token(step, inputs, state, lengths)
        return y, state if return_state else None

    dtype = torch.promote_types(q.dtype, torch.float32)
    a = None if log_decay is None else log_decay.to(dtype)
    tokens = Tokens.gather(state, k, v, a, lengths)
    kept = None
    if return_state:
        kept = tokens.last(tokens.slots if weights.window is None else weights.window - 1)
    if state is None and lengths is not None:
        # the padding stands behind all that a real query sees: it need not be known
        tokens = replace(tokens, first=None, end=None)
    dense = tokens.log_decay is None and tokens.first is None
    fused = form == "auto" and dense and weights.fused and not is_transformed()
    reason = _reason_for_torch(weights, q, tokens, dtype, form, backend)
    auto = "parallel" if reason is None or fused else "chunked"
    note("softmax_attention", "recurrent" if T == 1 else auto if form == "auto" else form, reason, q)
    if reason is None:
        kind = q.dtype if gpu.runs_on(q) else torch.float32  # on a GPU sums alone are float32
        inputs = (q.to(kind), tokens.keys.to(kind), tokens.values.to(kind), tokens.decay_behind_padding(dtype))
        y, _ = torch.ops.maclaurin.quadratic(*inputs, weights.scale, True, True, weights.window or 0)
        return y.to(q.dtype), kept
    at_once = fused and state is None and weights.window is None  # one call of PyTorch's own attention
    if is_unrolled(q) and not at_once:
        inputs = (q, tokens.keys, tokens.values, tokens.log_decay, tokens.first, tokens.end)
        return _as_operator(*inputs, *weights.values(), form, chunk_size, fused), kept
    return _in_torch(weights, q, tokens, form, chunk_size, fused), kept


def _in_torch(weights: _Weights, q: Tensor, tokens: Tokens, form: str, chunk_size: int, fused: bool) -> Tensor:
    if fused:
        return _fused(weights, q, tokens, chunk_size)
    dtype = torch.promote_types(q.dtype, torch.float32)
    B, T, H, _ = q.shape
    G = tokens.keys.shape[2]
    q_NRTK = q.to(dtype).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    k_NSK, v_NSV = (x.to(dtype).transpose(1, 2).flatten(0, 1) for x in (tokens.keys, tokens.values))
    a_NS = None if tokens.log_decay is None else tokens.log_decay.transpose(1, 2).flatten(0, 1)
    real = tokens.real()
    real_NS = None if real is None else real.repeat_interleave(G, dim=0)

    block = T if form == "parallel" else queries_at_once(q_NRTK, tokens.slots, chunk_size, weights.window)
    along_time = [None if x is None else slices(x, 1, weights.window, block) for x in (k_NSK, v_NSV, a_NS, real_NS)]

    def attend(q_block: Tensor, seen: int) -> Tensor:
        begin = weights.first_seen(seen - q_block.shape[2])
        k, v, a, real = (None if cut is None else cut(begin, seen) for cut in along_time)
        assert k is not None and v is not None
        return weights.attend(q_block, k, v, a, real)

    y_NRTV: Tensor = over_query_blocks(attend, q_NRTK, tokens.slots, block)
    y: Tensor = y_NRTV.unflatten(0, (B, G)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return y.to(q.dtype)


@one_operator(
    "softmax_in_torch(Tensor q, Tensor keys, Tensor values, Tensor? log_decay, Tensor? first, Tensor? end, float scale, "
    "int? window, str numerator, str divisor, bool detach_divisor, float divisor_epsilon, float? score_cap, str form, "
    "int chunk_size, bool fused) -> Tensor",
    fake=lambda q, keys, values, *_: q.new_empty(*q.shape[:3], values.shape[3]),
)
def _as_operator(q: Tensor, *arguments: Any) -> Tensor:
    keys, values, log_decay, first, end, *options, form, chunk_size, fused = arguments
    tokens = Tokens(keys, values, log_decay, q.shape[1], first, end)
    return _in_torch(_Weights(*options), q, tokens, form, chunk_size, fused)


def _reason_for_torch(
    weights: _Weights, q: Tensor, tokens: Tokens, dtype: torch.dtype, form: str, backend: str
) -> str | None:
    """None where a kernel runs: wherever it can, but for what PyTorch's own attention computes. Windows have one on GPUs."""
    on_gpu = gpu.runs_on(q)
    words = "softmax without cap or another divisor" if on_gpu else "softmax without window, cap or another divisor"
    options = None if weights.plain and (on_gpu or weights.window is None) else words
    padding = None if on_gpu or tokens.first is None else "sequences without padding"
    banded = on_gpu and q.shape[1] > 1 and weights.window is not None and weights.window < tokens.slots
    faster = None
    if tokens.log_decay is None and not banded:  # PyTorch's would compute all pairs of large blocks, and mask them
        faster = "PyTorch's own attention is faster without a decay"
    small = q.shape[3] <= gpu.LARGEST_KEY
    if form == "recurrent":
        faster = "form='recurrent' is for comparison"
    return reason_for_torch(backend, q, dtype, no_kernel=options or padding, torch_is_faster=faster, in_triton=small)


def _fused(weights: _Weights, q: Tensor, tokens: Tokens, chunk_size: int) -> Tensor:
    """PyTorch's own attention. On a CPU it is fastest in float32, and exact in the sums."""
    T, S = q.shape[1], tokens.slots
    dtype = torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype
    q_BHTK, k_BGSK, v_BGSV = (x.to(dtype).transpose(1, 2) for x in (q, tokens.keys, tokens.values))
    grouped = q_BHTK.shape[1] != k_BGSK.shape[1]
    if T == S and (weights.window is None or weights.window >= S):
        y = scaled_dot_product_attention(q_BHTK, k_BGSK, v_BGSV, is_causal=True, scale=weights.scale, enable_gqa=grouped)
        return y.transpose(1, 2).to(q.dtype)

    chunk_size = queries_at_once(q_BHTK, S, chunk_size, weights.window)
    cut_keys, cut_values = (slices(x, 2, weights.window, chunk_size) for x in (k_BGSK, v_BGSV))

    biases: dict[tuple[int, int], Tensor] = {}  # the last one made: all blocks inside a window share it

    def bias(sizes: tuple[int, int]) -> Tensor:
        if sizes not in biases:
            biases.clear()
            hidden = decay.causal_mask(*sizes, q.device, weights.window).logical_not()
            biases[sizes] = torch.zeros(sizes, device=q.device, dtype=dtype).masked_fill(hidden, -math.inf)
        return biases[sizes]

    def attend(q_block: Tensor, seen: int) -> Tensor:
        queries = q_block.shape[2]
        begin = weights.first_seen(seen - queries)
        return scaled_dot_product_attention(
            q_block,
            cut_keys(begin, seen),
            cut_values(begin, seen),
            attn_mask=None if queries == 1 else bias((queries, seen - begin)),  # one query sees all that was cut for it
            scale=weights.scale,
            enable_gqa=grouped,
        )

    # what the backward of a narrow band keeps is no more than a copy of the keys and values
    narrow = weights.window is not None and weights.window <= chunk_size
    y = over_query_blocks(attend, q_BHTK, S, chunk_size, recompute=not narrow)
    return y.transpose(1, 2).to(q.dtype)
