"""Mechanisms: attention without its projections, as a function and as the matrix of its weights.

    mechanism(q, k, v, log_decay, state, call) -> y, state           by an op, in any form
    mechanism.weights(q, k, log_decay) -> w (B, H, T, S)             y_t = Σ_s w_ts v_s

    Softmax    w_ts = exp(x_ts + b_ts) / Σ_r exp(x_tr + b_tr)        x_ts = scale · φ(q_t)·φ(k_s)
    Linear     w_ts = x_ts exp(b_ts) / Σ_r x_tr exp(b_tr)            or Σ_c x_tsc exp(b_tsc), behind a decay per channel
    Power      w_ts = f(x_ts) exp(b_ts) / Σ_r f(x_tr) exp(b_tr)      f a power, or terms of the exponential's series
               w_ts = (Σ_c x_tsc exp(b_tsc))² / …                    f = x² behind a decay per channel
    Inline     w_ts = (x_ts − mean_r x_tr + 1) / (how many keys t sees)

b is the sum of log decays between s and t, 0 without a decay. A mixer is a mechanism behind its own projections, a student
of a conversion is one behind those of another model, and the lab reads the weights. φ, scale and divisor are defined here
only. Mechanisms are built at every call from the current options and parameters; frozen dataclasses would take three times
as long.
"""

# B batch, T time (queries), S time (keys), H heads, G key-value heads, K key channels

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.mixers.base import AT_ONCE, Call
from maclaurin.mixers.feature_maps import FeatureMap, features
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide
from maclaurin.ops.features import Kernel
from maclaurin.ops.inline import inline_attention
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.packed import Packed
from maclaurin.ops.power import FOLD_EVERY, power_attention
from maclaurin.ops.reference import decay_sums
from maclaurin.ops.softmax import softmax_attention
from maclaurin.ops.squares_by_channel import squares_by_channel
from maclaurin.ops.states import State, TokenState
from maclaurin.ops.transitions import window_transition

Tokens = tuple[Tensor, Tensor, Tensor, Tensor | None]  # q, k, v and log_decay

SEGMENT = 2048  # tokens whose features are made at a time


class Mechanism(ABC):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None = None,
        state: State | None = None,
        call: Call = AT_ONCE,
    ) -> tuple[Tensor, State | None]:
        """q (B,T,H,K), k (B,T,G,K), v (B,T,G,V), log_decay (B,T,G) -> y (B,T,H,V), and the state if `call` asks for it."""
        if isinstance(state, Packed):
            return state.over(
                lambda *tokens_state: self._attend(tokens_state[:4], tokens_state[4], call), q, k, v, log_decay
            )
        return self._attend((q, k, v, log_decay), state, call)

    @abstractmethod
    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]: ...

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        """w (B,H,T,S) in float64. visible: which keys a query sees, of those that it could; the others count as absent."""

    def within(self, reach: int | None) -> Mechanism:
        """The same mechanism for a model that looks back so far. Sums keep what is already in them."""
        return self


@dataclass(eq=False)
class OfScores(Mechanism):
    """features: φ of queries and keys, by name or as a map. scale: 1/√channels of φ unless given.

    causal: False for whole sequences. maps: of queries and of keys, before φ.
    """

    features: str | FeatureMap = "identity"
    scale: float | None = None
    causal: bool = True
    maps: tuple[nn.Module, nn.Module] | None = None

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        q, k, v, log_decay = tokens
        q, k = self.mapped(q, k, call.lengths)
        return self._op(q, k, v, log_decay, scale=self.scale, causal=self.causal, **call.with_state(state))

    @abstractmethod
    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        """The op on features of queries and keys."""

    def mapped(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """φ(q) and φ(k). φ(0) need not be zero; the ops, which know the lengths, give padding no features."""
        if self.maps is not None:
            q, k = self.maps[0](q), self.maps[1](k)
        if isinstance(self.features, str):
            return features(q, self.features), features(k, self.features)
        of_queries = self.features.of_queries if self._factors_cancel else self.features
        return of_queries(q, lengths), self.features(k, lengths)

    @property
    def _factors_cancel(self) -> bool:
        """Whether a positive factor of φ(q) cancels, so that it need not be computed."""
        return False

    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        q_BTHK, k_BSGK = self.mapped(q.double(), k.double())
        H = q.shape[2]
        bias = None if log_decay is None else _decay_between(repeat_heads(log_decay.double(), H), self.causal)
        scores_BHTS, bias_BHTS = self._scores(q_BTHK, repeat_heads(k_BSGK, H), bias)
        seen_TS = self._seen(q.shape[1], k.shape[1], q.device)
        return self._weigh(scores_BHTS, bias_BHTS, seen_TS if visible_TS is None else seen_TS & visible_TS)

    def _scores(self, q_BTHK: Tensor, k_BSHK: Tensor, bias_BHTS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return default_scale(self.scale, q_BTHK) * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK), bias_BHTS

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        all_TS = torch.ones(queries, keys, dtype=torch.bool, device=device)
        return all_TS.tril() if self.causal else all_TS

    @abstractmethod
    def _weigh(self, scores_BHTS: Tensor, bias_BHTS: Tensor | None, seen_TS: Tensor) -> Tensor:
        """The weights of the keys that a query sees, 0 for all others."""


@dataclass(eq=False)
class Softmax(OfScores):
    """window, numerator, divisor, detach_divisor, divisor_epsilon and score_cap as in `softmax_attention`."""

    window: int | None = None
    numerator: str = "exp"
    divisor: str = "sum"
    detach_divisor: bool = False
    divisor_epsilon: float = 0.0
    score_cap: float | None = None

    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        return softmax_attention(
            q,
            k,
            v,
            log_decay,
            window=self.window,
            numerator=self.numerator,
            divisor=self.divisor,
            detach_divisor=self.detach_divisor,
            divisor_epsilon=self.divisor_epsilon,
            score_cap=self.score_cap,
            **options,
        )

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        if call.transitions is None:
            return super()._attend(tokens, state, call)
        q, k, v, log_decay = tokens  # the state of these tokens alone is these tokens
        y, k = torch.zeros_like(repeat_heads(v, q.shape[2])), self.mapped(q, k)[1]
        if self.window is None:
            return y, TokenState(k, v, log_decay)
        call.transitions.append(window_transition(k, self.window))
        first = max(0, k.shape[1] - self.window + 1)
        k, v = (x[:, first:].clone() for x in (k, v))  # a view would keep all tokens alive
        return y, TokenState(k, v, None if log_decay is None else log_decay[:, first:].clone())

    def within(self, reach: int | None) -> Softmax:
        if reach is None or (self.window is not None and self.window <= reach):
            return self
        return replace(self, window=reach)

    def _seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        seen_TS = super()._seen(queries, keys, device)
        return seen_TS if self.window is None else seen_TS.triu(1 - self.window)

    def _weigh(self, scores_BHTS: Tensor, bias_BHTS: Tensor | None, seen_TS: Tensor) -> Tensor:
        if self.score_cap is not None:
            scores_BHTS = scores_BHTS.clamp(max=self.score_cap)
        if self.numerator == "relu":
            weights_BHTS = scores_BHTS.relu() if bias_BHTS is None else scores_BHTS.relu() * bias_BHTS.exp()
            weights_BHTS = weights_BHTS * seen_TS
        else:
            scores_BHTS = scores_BHTS if bias_BHTS is None else scores_BHTS + bias_BHTS
            if self.divisor == "sum" and not self.divisor_epsilon:
                # a query that sees nothing has no weights: its equal scores are multiplied by zero after the softmax
                hidden = torch.finfo(scores_BHTS.dtype).min
                return scores_BHTS.masked_fill(~seen_TS, hidden).softmax(-1) * seen_TS
            weights_BHTS = scores_BHTS.masked_fill(~seen_TS, -math.inf).exp()
        sums = weights_BHTS.sum(-1, keepdim=True) + self.divisor_epsilon
        match self.divisor:
            case "sum":
                return safe_divide(weights_BHTS, sums)
            case "floored-sum":
                return weights_BHTS / sums.clamp(min=1)
            case "count":
                return weights_BHTS / seen_TS.sum(-1, keepdim=True).clamp(min=1)
        return weights_BHTS


@dataclass(eq=False)
class Linear(OfScores):
    """normalize: whether the weights are divided by their sum. log_decay may be one per key channel, (B,T,G,K)."""

    normalize: bool = True

    @property
    def _factors_cancel(self) -> bool:
        return self.normalize

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        """Features of a map are computed segment by segment, so that they stay in the CPU's cache until they are summed."""
        T = tokens[0].shape[1]
        at_once = not self.causal or call.form == "parallel" or isinstance(self.features, str) or not tokens[0].is_cpu
        if at_once or torch.compiler.is_compiling() or T <= SEGMENT:  # a compiler would unroll the loop
            return super()._attend(tokens, state, call)
        *qkv, log_decay = tokens
        # split, not slices: the gradient of a slice is as long as the sequence
        starts = range(0, T, SEGMENT)
        decays = (None,) * len(starts) if log_decay is None else log_decay.split(SEGMENT, dim=1)
        outputs = []
        segments = zip(starts, *(x.split(SEGMENT, dim=1) for x in qkv if x is not None), decays, strict=True)
        for start, q_part, k_part, v_part, a_part in segments:
            part = call.part(start, q_part.shape[1], last=start + SEGMENT >= T)
            y, state = super()._attend((q_part, k_part, v_part, a_part), state, part)
            outputs.append(y)
        return torch.cat(outputs, dim=1), state

    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        return linear_attention(q, k, v, log_decay, normalize=self.normalize, **options)

    def _scores(self, q_BTHK: Tensor, k_BSHK: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if bias is None or bias.dim() == 4:
            return super()._scores(q_BTHK, k_BSHK, bias)
        terms = torch.einsum("bthk,bshk,bhkts->bhts", q_BTHK, k_BSHK, bias.exp())
        return default_scale(self.scale, q_BTHK) * terms, None

    def _weigh(self, scores_BHTS: Tensor, bias_BHTS: Tensor | None, seen_TS: Tensor) -> Tensor:
        weights_BHTS = self._of_scores(scores_BHTS) * seen_TS
        weights_BHTS = weights_BHTS if bias_BHTS is None else weights_BHTS * bias_BHTS.exp()
        return safe_divide(weights_BHTS, weights_BHTS.sum(-1, keepdim=True)) if self.normalize else weights_BHTS

    def _of_scores(self, scores_BHTS: Tensor) -> Tensor:
        return scores_BHTS


@dataclass(eq=False)
class Power(Linear):
    """order, order_weights, fold_every, state_dtype as in `power_attention`; fold_at is a function of the keys' dtype."""

    order: int | tuple[int, ...] = 2
    order_weights: Tensor | None = None  # (H, number of orders)
    fold_at: Callable[[torch.dtype], int] | None = None
    fold_every: int = FOLD_EVERY
    state_dtype: str = "float32"

    @property
    def _factors_cancel(self) -> bool:
        return self.normalize and isinstance(self.order, int)

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        at_once = self if call.transitions is None else replace(self, fold_at=lambda _: 1, fold_every=1)
        return super(Power, at_once)._attend(tokens, state, call)

    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        if log_decay is not None and log_decay.dim() == 4:
            if self.order != 2:
                raise ValueError(f"log_decay may have an entry per channel for order 1 and 2 only, not for {self.order}")
            return squares_by_channel(q, k, v, log_decay, normalize=self.normalize, **options)
        return power_attention(
            q,
            k,
            v,
            log_decay,
            order=self.order,
            order_weights=self.order_weights,
            normalize=self.normalize,
            fold_at=None if self.fold_at is None else self.fold_at(k.dtype),
            fold_every=self.fold_every,
            state_dtype=self.state_dtype,
            **options,
        )

    def _of_scores(self, scores_BHTS: Tensor) -> Tensor:
        factors = None if self.order_weights is None else self.order_weights.to(scores_BHTS.dtype).T[..., None, None]
        return Kernel.of(self.order)(scores_BHTS, factors)


@dataclass(eq=False)
class Inline(OfScores):
    """head_scale (H, 1): a learnt scale per head in place of the common one. There is no decay."""

    head_scale: Tensor | None = None

    def mapped(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k = super().mapped(q, k, lengths)
        return q if self.head_scale is None else q * self.head_scale, k

    def _op(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, **options: Any) -> tuple[Tensor, State | None]:
        self._no_decay(log_decay)
        return inline_attention(q, k, v, **options)

    def _weigh(self, scores_BHTS: Tensor, bias_BHTS: Tensor | None, seen_TS: Tensor) -> Tensor:
        self._no_decay(bias_BHTS)
        count_T1 = seen_TS.sum(-1, keepdim=True).clamp(min=1)
        mean_BHT1 = (scores_BHTS * seen_TS).sum(-1, keepdim=True) / count_T1
        return (scores_BHTS - mean_BHT1 + 1) / count_T1 * seen_TS

    @staticmethod
    def _no_decay(log_decay: Tensor | None) -> None:
        if log_decay is not None:
            raise ValueError("log_decay must be None: inline weighs all tokens alike")


def _decay_between(log_decay: Tensor, causal: bool) -> Tensor:
    """a_{s+1} + … + a_t (B,H,T,T), for later tokens s (causal=False) a_t + … + a_{s-1}; per channel (B,H,K,T,T)."""
    a_BTC = log_decay.flatten(2)
    sums_BCTS = decay_sums(a_BTC)  # 0 above the diagonal
    if not causal:
        sums_BCTS = sums_BCTS + decay_sums(a_BTC.flip(1)).flip(-1, -2)
    return sums_BCTS.view(-1, *log_decay.shape[2:], *sums_BCTS.shape[2:])
