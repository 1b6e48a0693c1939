"""Power attention: the score (q·k)² behind a decay, or any orders of the exponential's series, in three exact forms.

The state. Order 2 with d = 64 has a recurrent state of 2080 x 65 numbers per head, as much as 1057 cached keys and values.
Until a sequence is that long the state is a KV cache; then its tokens are folded into the recurrent state, all at once. From
there on new tokens go to a small buffer, which is folded in every `fold_every` tokens, so that a decoding step reads the
recurrent state once and rarely writes it. All forms follow the same rule: a state depends on the tokens, not on the form
that made it.

Buffered tokens meet the query as (q·k)², not as φ(q)·φ(k). That is also the more accurate way: where q and k are nearly
orthogonal, the product of features keeps only half the digits of the score.
"""

# B batch, T new tokens, S slots (kept and new), H heads, G key-value heads, R = H/G, N = B·G, K, V, F, W = V or V+1

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.ops import checks, decay, gpu, native
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, without_autocast
from maclaurin.ops.backends import kernels_for, note, reason_for_torch, say_once
from maclaurin.ops.blocks import over_query_blocks
from maclaurin.ops.chunks import Heads, Plan
from maclaurin.ops.crossover import longest_direct
from maclaurin.ops.features import Kernel, monomials
from maclaurin.ops.folding import MOST_FEATURES, buffered, fold_length_of, folds_at_once
from maclaurin.ops.native.halves import STATE_DTYPES
from maclaurin.ops.native.rows import RowState
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.power_chunked import CHUNK, chunked
from maclaurin.ops.power_native import (
    Policy,
    second_order,
    sums_up_to_second_order,
    tasks_in_chunks,
    whole_series,
    with_lazy_fold,
)
from maclaurin.ops.power_prompt import plain_prompt
from maclaurin.ops.ragged import Inputs, token_by_token
from maclaurin.ops.rounding import above_rounding
from maclaurin.ops.states import PowerState
from maclaurin.ops.tokens import Tokens
from maclaurin.ops.transforms import is_transformed

FOLD_EVERY = 32
DIRECT_BLOCK = 512  # queries whose weights exist at a time where `auto` needs no recurrent state
# Where there is a recurrent state, the C++ kernels take one token at a time, or so many that converting it pays off.
NATIVE_FROM = 16
SERIES = Kernel.of((0, 1, 2))
LONG_SERIES = 8  # orders above it are summed in float64: their powers leave the range of float32 at ordinary scores


@with_options
def power_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    order: int | Iterable[int] = 2,
    order_weights: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = True,
    causal: bool = True,
    state: PowerState | None = None,
    chunk_size: int = CHUNK,
    fold_at: int | None = None,
    fold_every: int = FOLD_EVERY,
    state_dtype: str = "float32",
    **options: Unpack[CallOptions],
) -> tuple[Tensor, PowerState | None]:
    """Causal attention with the weights f(scale·q_t·k_s)·exp(a_{s+1} + … + a_t), s <= t, divided by their sum.

    q (B,T,H,K), k (B,T,G,K), v (B,T,G,V) with G dividing H; log_decay a (B,T,G) or (B,T,H), <= 0. Returns y (B,T,H,V) in
    the dtype of q, and the state. An output whose weights sum to zero is zero.

    order: a number p for f(x) = x^p, or a sequence such as (0, 1, 2) for those terms of exp(x) = Σ xⁿ/n!.
    order_weights: (number of orders,) or (H, number of orders), one factor per term.
    scale: 1/√K unless given. normalize: False leaves out the division.
    causal: False for whole sequences, in which every token sees every token: no state, and backend="auto".
    fold_at, fold_every: when kept tokens are folded into the recurrent state; by default where it becomes the smaller one,
    and one by one in a graph, whose states then have one shape (`folds_at_once`).
    state_dtype: "bfloat16" halves what a native decoding step of order 2 reads: the recurrent state rounded. All of its bits
    are kept for the next fold (`native/halves.py`); everything else reads and returns all of it.
    Other arguments as in `Options`; the native backend has orders 2, (1, 2) and (0, 1, 2) in float32.
    """
    if isinstance(state, RowState):
        return state.step(q, k, v, log_decay)
    call = Options.of(power_attention, options)
    usual = order == 2 and order_weights is None and scale is None and causal and state_dtype in STATE_DTYPES
    # what a compiler knows at once comes first: torch 2.9 cannot tell whether a call of a graph is plain
    if not torch.compiler.is_compiling() and usual and isinstance(state, PowerState) and call.plain and call.return_state:
        transformed = is_transformed()
        step = (q, k, v, log_decay, state, normalize, fold_at, fold_every, state_dtype)
        done = None if transformed else native.plain_step(*step)
        if done is not None:
            return done
    if not torch.compiler.is_compiling() and usual and state is None and call.plain and call.form == "auto":
        prompt = (q, k, v, log_decay, normalize, chunk_size, fold_at, fold_every, call.return_state)
        started = None if is_transformed() else plain_prompt(*prompt)
        if started is not None:
            return started
    if not causal:
        from maclaurin.ops.bidirectional import bidirectional_power  # made of this op

        both_ways = partial(
            bidirectional_power, order=order, order_weights=order_weights, scale=scale, normalize=normalize, form=call.form
        )
        return call.over_whole_documents(both_ways, (q, k, v, log_decay), state)
    checks.heads(q, k, v)
    checks.log_decay(log_decay, q, k)
    call.check()
    checks.scale(scale)
    checks.sound_state(state, PowerState, q)
    kernel = Kernel.of(order)
    weights = _checked_weights(order_weights, kernel, q)
    at_least_one("fold_every", fold_every)
    at_least_one("chunk_size", chunk_size)
    one_of("state_dtype", state_dtype, STATE_DTYPES)
    if fold_at is None and folds_at_once(kernel.feature_count(k.shape[3])):
        fold_at = fold_every = 1
    elif fold_at is None:
        fold_at = fold_length_of(kernel, k.shape[3], v.shape[3], normalize, k.dtype)
    at_least_one("fold_at", fold_at)
    policy = (chunk_size, fold_at, fold_every, call.form, call.backend)
    engine = _Engine(kernel, weights, default_scale(scale, q), normalize, *policy)
    if (log_decay is not None and log_decay.shape[2] != k.shape[2]) or weights is not None:
        # a state is shared by the query heads of a group only if they share its decay and the weights of its orders
        k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
        log_decay = None if log_decay is None else repeat_heads(log_decay, q.shape[2])
    checks.token_state(state, k, v)
    _check_recurrent_state(state, kernel, k.shape[3], v.shape[3] + normalize)
    return call.causally(engine.run, (q, k, v, log_decay), state)


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class _Engine:
    """One call's mechanism and policy; `run` is what all forms share."""

    kernel: Kernel
    weights: Tensor | None
    scale: float
    normalize: bool
    chunk_size: int
    fold_at: int
    fold_every: int
    form: str
    backend: str

    @without_autocast
    def run(
        self, inputs: Inputs, state: PowerState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, PowerState | None]:
        if self.form != "recurrent":
            return self._at_once(inputs, state, lengths, return_state)
        y, state = token_by_token(partial(self._at_once, return_state=True), inputs, state, lengths)
        return y, state if return_state else None

    def _at_once(
        self, inputs: Inputs, state: PowerState | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, PowerState | None]:
        q, k, v, log_decay = inputs
        assert q is not None and k is not None and v is not None
        dtype = self.dtype_of(q, self.kernel.orders)
        log_decay = None if log_decay is None else log_decay.to(torch.promote_types(q.dtype, torch.float32))
        tokens = Tokens.gather(state, k, v, log_decay, lengths)
        recurrent = None if state is None else state.recurrent
        folded = self._folded(tokens, recurrent is not None) if return_state else 0

        reason = self._reason_for_torch(q, dtype, recurrent is not None)
        backend = kernels_for(q) if reason is None else "torch"
        lazily = folded > 0 and self._folds_lazily(q, backend, (*inputs, recurrent))
        gradients = native.needs_gradients((q, k, v))
        tasks = tasks_in_chunks(q, v, gradients=gradients) if backend == "native" else None
        waited_for = {"folds": folded > 0 and not lazily, "gradients": gradients, "tasks": tasks}
        through_state = self._through_state(q, backend, recurrent is not None, **waited_for)
        note("power_attention", "recurrent" if q.shape[1] == 1 else "chunked" if through_state else "parallel", reason, q)
        if lazily and not through_state:
            y, fold = with_lazy_fold(q, tokens, self._policy(folded, through_state))
            return y.to(q.dtype), PowerState.lazily(tokens.after(folded), fold)
        if reason is None:
            y, recurrent = self._natively(q, tokens, recurrent, folded, through_state)
        else:
            attend = self._as_operator if is_unrolled(q) else self._in_torch
            y, recurrent = attend(q, tokens, recurrent, folded, dtype, through_state)
        if not return_state:
            return y.to(q.dtype), None
        kept = tokens.after(folded)
        return y.to(q.dtype), PowerState(kept.keys, kept.values, kept.log_decay, kept.lengths, recurrent)

    @staticmethod
    def dtype_of(q: Tensor, orders: Sequence[int]) -> torch.dtype:
        """Of all sums."""
        return decay.widest(q.device) if orders[-1] > LONG_SERIES else torch.promote_types(q.dtype, torch.float32)

    def _reason_for_torch(self, q: Tensor, dtype: torch.dtype, has_state: bool) -> str | None:
        """None where kernels run. On a CPU few tokens read a recurrent state in torch; one token has kernels of its own."""
        faster = f"torch reads a recurrent state faster for 2 to {NATIVE_FROM - 1} tokens"
        few = has_state and 1 < q.shape[1] < NATIVE_FROM and kernels_for(q) == "native"
        return reason_for_torch(
            self.backend,
            q,
            dtype,
            no_kernel=self._no_kernel,
            torch_is_faster=faster if few else None,
            in_triton=q.shape[3] <= gpu.LARGEST_KEY and not self._series,
        )

    @property
    def _no_kernel(self) -> str | None:
        """Sums of two kernels have no guard against rounding, which averages of values need (`rounding.py`)."""
        if self._squared or self._series or (self.kernel.orders[-1] == 2 and not self._averages):
            return None
        weighted = "" if self.weights is None else " with order_weights"
        return f"order=2 or (0, 1, 2), or orders beside 2 whose weights may be negative, not {self.kernel}{weighted}"

    @property
    def _squared(self) -> bool:
        return self.weights is None and self.kernel.squared

    @property
    def _series(self) -> bool:
        """1 + x + x²/2, with outputs that are averages: in one kernel."""
        return self.weights is None and self.normalize and self.kernel == SERIES

    def _policy(self, folded: int, through_state: bool) -> Policy:
        return Policy(self.scale, self.normalize, self.chunk_size, self.form, folded, through_state)

    def _folds_lazily(self, q: Tensor, backend: str, tensors: tuple[Tensor | None, ...]) -> bool:
        """Whether the recurrent state of a prompt waits until somebody looks at it: where no gradient goes through it."""
        prompt = tensors[-1] is None and q.shape[1] > 1 and self._squared and backend == "native"
        return prompt and not is_unrolled(q) and not native.needs_gradients(tensors)

    def _natively(
        self, q: Tensor, tokens: Tokens, recurrent: Tensor | None, folded: int, through_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        policy = self._policy(folded, through_state)
        if self._squared:
            return second_order(q, tokens, recurrent, policy)
        if self._series:
            return whole_series(q, tokens, recurrent, policy)
        counted = replace(tokens, values=self._with_ones(tokens, torch.float32))
        y, recurrent = sums_up_to_second_order(q, counted, recurrent, self.kernel, self.weights, policy)
        return safe_divide(y[..., :-1], y[..., -1:]) if self.normalize else y, recurrent

    def _through_state(self, q: Tensor, backend: str, has_state: bool, **waited_for: Any) -> bool:
        """Whether chunks go through a recurrent state. The kernels read one in no other way; torch does directly.
        waited_for: beside the outputs, as `longest_direct` has it."""
        if has_state and backend != "torch":
            return True
        T, K = q.shape[1], q.shape[3]
        if self.form == "auto" and (T == 1 or is_unrolled(q)):
            return False  # what a compiler sees decides by length when it runs
        longest = longest_direct(backend, self._features(K), **waited_for) if self.form == "auto" else T
        wanted = self.form == "chunked" or longest < T
        if wanted and not self._has_state(K):
            say_once(f"power_attention with {self.kernel} and {K} channels has no recurrent state: its time is quadratic")
        return wanted and self._has_state(K)

    def _as_operator(
        self, q: Tensor, tokens: Tokens, recurrent: Tensor | None, folded: int, *_: Any
    ) -> tuple[Tensor, Tensor | None]:
        tensors = (q, tokens.keys, tokens.values, tokens.log_decay, tokens.first, tokens.end, recurrent, self.weights)
        kernel = (list(self.kernel.orders), list(self.kernel.coefficients))
        y, new_state = _operator(*tensors, *kernel, self.scale, self.normalize, self.chunk_size, self.form, folded)
        return y, new_state if folded else recurrent

    def _in_torch(
        self, q: Tensor, tokens: Tokens, recurrent: Tensor | None, folded: int, dtype: torch.dtype, through_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        B, T, H, _ = q.shape
        G = tokens.keys.shape[2]
        q_NRTK = q.to(dtype).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4).flatten(0, 1)
        k_NSK = (tokens.keys.to(dtype) * self.scale).transpose(1, 2).flatten(0, 1)
        v_NSW = self._with_ones(tokens, dtype).transpose(1, 2).flatten(0, 1)
        a_NS = None if tokens.log_decay is None else tokens.log_decay.transpose(1, 2).flatten(0, 1)
        state_NFW = None if recurrent is None else recurrent.to(dtype).flatten(0, 1)
        weights_NO = None if self.weights is None else self.weights.to(dtype).repeat(B, 1)

        if through_state:
            y_NRTW, new_NFW = self._chunked((q_NRTK, k_NSK, v_NSW, a_NS, state_NFW, weights_NO), folded)
        else:
            block = {"auto": DIRECT_BLOCK, "chunked": self.chunk_size}.get(self.form, T)

            def attend(q_block: Tensor, seen: int) -> Tensor:
                a_seen = None if a_NS is None else a_NS[:, :seen]
                return self._directly((q_block, k_NSK[:, :seen], v_NSW[:, :seen], a_seen, state_NFW, weights_NO))

            y_NRTW = over_query_blocks(attend, q_NRTK, tokens.slots, block)
            new_NFW = None
            if folded:
                _, new_NFW = self._chunked((q_NRTK[:, :, :0], k_NSK, v_NSW, a_NS, state_NFW, None), folded)
        if new_NFW is not None:
            recurrent = new_NFW.unflatten(0, (B, G))
        y = y_NRTW.unflatten(0, (B, G)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        if self.normalize:
            y = safe_divide(y[..., :-1], y[..., -1:])
        return y, recurrent

    def _chunked(self, heads: Heads, folded: int) -> tuple[Tensor, Tensor | None]:
        """Through the recurrent state. It holds φ(k); chunks compute with plain monomials, which the roots turn into φ."""
        q_NRTK, k_NSK, v_NSW, a_NS, state_NFW, weights_NO = heads
        plan = Plan(self.kernel, self.chunk_size, folded, self._averages)
        if state_NFW is None and not folded:
            return chunked((q_NRTK, k_NSK, v_NSW, a_NS, None, weights_NO), plan)
        root_F1 = self.kernel.feature_weights(k_NSK.shape[-1], k_NSK)[:, None].sqrt()
        start_NFW = None if state_NFW is None else state_NFW / root_F1
        y_NRTW, end_NFW = chunked((q_NRTK, k_NSK, v_NSW, a_NS, start_NFW, weights_NO), plan)
        return y_NRTW, None if end_NFW is None else end_NFW * root_F1

    def _directly(self, heads: Heads) -> Tensor:
        """The weights as a matrix, and the recurrent state of what came before the first key."""
        q_NRTK, k_NSK, v_NSW, a_NS, state_NFW, weights_NO = heads
        T, S = q_NRTK.shape[2], k_NSK.shape[1]
        score_NRTS = torch.einsum("nrtk,nsk->nrts", q_NRTK, k_NSK)
        weight_NRTS = self.kernel.value(score_NRTS, None if weights_NO is None else weights_NO.T[:, :, None, None, None])
        if a_NS is None:
            weight_NRTS = weight_NRTS * decay.causal_mask(T, S, q_NRTK.device)
        else:
            sums_NS = decay.cumulative(a_NS, 1)
            weight_NRTS = weight_NRTS * decay.between(sums_NS[:, S - T :], sums_NS, q_NRTK.dtype)[:, None]
        y_NRTW = torch.einsum("nrts,nsw->nrtw", weight_NRTS, v_NSW)
        if state_NFW is None:
            return y_NRTW
        # the weights go on the few features of q, not on the large recurrent state: it is read once
        q_NKQ = q_NRTK.flatten(1, 2).transpose(1, 2).contiguous()
        features_NFQ = monomials(q_NKQ, self.kernel.orders) * self.kernel.query_weights(k_NSK, weights_NO)
        read_NQW = torch.bmm(features_NFQ.transpose(1, 2), state_NFW)
        if self._averages:
            totals_NF = state_NFW[..., -1] / self.kernel.feature_weights(k_NSK.shape[-1], k_NSK).sqrt()
            used_NQ1 = above_rounding(read_NQW[..., -1:], q_NKQ.transpose(1, 2), totals_NF, self.kernel, weights_NO)
            read_NQW = read_NQW * used_NQ1  # not filled: NaN stays NaN
        read_NRTW = read_NQW.view_as(y_NRTW)
        if a_NS is not None:
            read_NRTW = read_NRTW * decay.factor(sums_NS[:, None, S - T :, None], read_NRTW.dtype)
        return y_NRTW + read_NRTW

    def _folded(self, tokens: Tokens, has_state: bool) -> int:
        """How many slots go into the recurrent state: all, each time that enough of them are buffered."""
        if not self._has_state(tokens.keys.shape[3]):
            return 0
        kept = tokens.slots - tokens.new
        first = max(self.fold_every if has_state else self.fold_at, kept + 1)
        return tokens.slots - buffered(tokens.slots, first, self.fold_every)

    def _with_ones(self, tokens: Tokens, dtype: torch.dtype) -> Tensor:
        """The values, and where outputs are normalised a column that counts the tokens."""
        values = tokens.values.to(dtype)
        if not self.normalize:
            return values
        real = tokens.real()
        ones = values.new_ones(values.shape[:-1]) if real is None else real[..., None].to(dtype).expand(values.shape[:-1])
        return torch.cat([values, ones[..., None]], dim=-1)

    @property
    def _averages(self) -> bool:
        """Whether outputs are averages of values. Weights of the orders are looked at where they are used."""
        return self.normalize and (self.kernel.never_negative if self.weights is None else self.kernel.even)

    def _features(self, key_dim: int) -> int:
        return self.kernel.feature_count(key_dim)

    def _has_state(self, key_dim: int) -> bool:
        return self._features(key_dim) <= MOST_FEATURES


def _shapes(q: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    orders, coefficients, _, normalize, _, _, folded = rest[5:]
    dtype = _Engine.dtype_of(q, orders)
    (B, T, H, K), (G, V) = q.shape, values.shape[2:]
    state = (B, G, Kernel(tuple(orders), tuple(coefficients)).feature_count(K), V + int(normalize)) if folded else (0,)
    return q.new_empty(B, T, H, V, dtype=dtype), q.new_empty(state, dtype=dtype)


@one_operator(
    "power_in_torch(Tensor q, Tensor keys, Tensor values, Tensor? log_decay, Tensor? first, Tensor? end, Tensor? recurrent, "
    "Tensor? weights, int[] orders, float[] coefficients, float scale, bool normalize, int chunk_size, str form, "
    "SymInt folded) -> (Tensor, Tensor)",
    fake=_shapes,
)
def _operator(q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor | None]:
    k, v, log_decay, first, end, recurrent, weights, orders, coefficients, scale, normalize, chunk, form, folded = arguments
    kernel = Kernel(tuple(orders), tuple(coefficients))
    engine = _Engine(kernel, weights, scale, normalize, chunk, 1, 1, form, "torch")  # when to fold was decided before
    tokens = Tokens(k, v, log_decay, q.shape[1], first, end)
    through_state = engine._through_state(q, "torch", recurrent is not None, folds=folded > 0)
    y, after = engine._in_torch(q, tokens, recurrent, folded, _Engine.dtype_of(q, orders), through_state)
    return y, after if folded else None


def _check_recurrent_state(state: PowerState | None, kernel: Kernel, key_dim: int, width: int) -> None:
    if state is None or state.recurrent is None:
        return
    expected = (kernel.feature_count(key_dim), width)
    if tuple(state.recurrent.shape[2:]) != expected:
        raise ValueError(
            f"state must have been made with the same order and normalize: its recurrent state must be {expected} "
            f"(features, value channels) per head, got {tuple(state.recurrent.shape[2:])}"
        )


def _checked_weights(weights: Tensor | None, kernel: Kernel, q: Tensor) -> Tensor | None:
    """(H, orders)"""
    if weights is None:
        return None
    H, orders = q.shape[2], len(kernel.orders)
    if not isinstance(weights, Tensor):
        raise TypeError(f"order_weights must be a tensor, got {type(weights).__name__}")
    if tuple(weights.shape) not in ((orders,), (H, orders)):
        raise ValueError(
            f"order_weights must have shape ({orders},) or ({H}, {orders}), one per term, got {checks.shape(weights)}"
        )
    return weights.expand(H, orders)
