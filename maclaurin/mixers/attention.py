"""The layer of the thesis (arXiv 2507.23632, paper 1; 2602.17363, paper 2): one score function, one norm, optional parts.

    q, k, v = conv(x·W_qkv);  v ← v·dt;  w_ts = f(q_t·k_s/√d)·exp(a_{s+1} + … + a_t);  y_t = Σ_s w_ts v_s / Σ_s w_ts
    out = W_o · norm((y + D⊙v) ⊙ silu(x·W_z))

With f(x) = exp(x) it is softmax attention and 2Mamba-E, with x² 2Mamba, with x linear attention and Mamba-2S, with the
first terms of the series the bridge between them. `published.py` lists the options of every row of both papers' tables.

The authors' code trains all of them in quadratic time and decodes only 2Mamba; here all forms of all of them agree. Where
their code sums zero weights it averages or returns zero, depending on the kernel; here the result is always zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.mixers.base import AT_ONCE, Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.mechanisms import Linear, Mechanism, Power, Softmax
from maclaurin.mixers.near_window import NearWindow
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.features import Kernel
from maclaurin.ops.folding import MOST_FEATURES, buffered
from maclaurin.ops.native.halves import STATE_DTYPES
from maclaurin.ops.power import FOLD_EVERY
from maclaurin.ops.states import LinearState, PowerState, State, TokenState

OVER_HEADS = "cosine-over-heads"
FEATURE_MAPS = ("identity", "relu", "leaky-relu", "silu", "elu", "exp", "cosine", OVER_HEADS)
NORMS = ("sum", "output", "sum-output", "none")
VALUE_NORMS = ("none", "position")


class Attention(ProjectedMixer):
    """Options beside those of every projected mixer:

    order: None for all orders at once (softmax), a number p for the power x^p, (0, …, P) for terms of the series.
    learn_order_weights: one factor 2σ(w) per head and order, initially 1.
    feature_map: of q and k, after the rotation: "relu", "leaky-relu", "silu", "elu" (elu + 1), "exp" (e^(0.2x)), "cosine"
    (unit length), "cosine-over-heads" (unit length of each channel over the heads, as in paper 1's code).
    norm: "sum" divides by the sum of the weights, "output" is an RMS norm over all heads, "sum-output" is one after the
    other, "none".
    value_norm: "position" divides v_t by t^σ(c), with one c per head (paper 1's cosine attention).
    window: for softmax only, how many tokens a query sees, itself included; may be changed at any time.
    near_window: for all other orders, how many of the last tokens a softmax beside them sees (`near_window.py`).
    near_norm: "each" divides both by their own sums, "joint" by one sum of all weights.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    fold_at, fold_every: when tokens are folded into the recurrent state; by default as soon as that makes the state smaller,
    and one by one in a graph of `torch.compile`, whose states then have one shape.
    state_dtype: "bfloat16" for order 2 halves what a decoding step reads of the state; may be changed at any time.
    """

    bidirectional = True
    gate_bias = True
    decays_per_channel = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        order: int | Sequence[int] | None,
        learn_order_weights: bool = False,
        feature_map: str = "identity",
        norm: str = "sum",
        value_norm: str = "none",
        window: int | None = None,
        near_window: int | None = None,
        near_norm: str = "each",
        fold_at: int | None = None,
        fold_every: int = FOLD_EVERY,
        state_dtype: str = "float32",
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        order = tuple(order) if isinstance(order, Sequence) else order  # JSON has no tuples
        one_of("feature_map", feature_map, FEATURE_MAPS)
        one_of("norm", norm, NORMS)
        one_of("value_norm", value_norm, VALUE_NORMS)
        at_least_one("fold_every", fold_every)
        one_of("state_dtype", state_dtype, STATE_DTYPES)
        self.kernel = None if order is None else Kernel.of(order)
        self._sums_at_once = order == 1 or self.decay == "channel"
        if fold_at is not None:
            at_least_one("fold_at", fold_at)
        if window is not None:
            at_least_one("window", window)
        self.order = order
        self.feature_map = feature_map
        self.norm = norm
        self.value_norm = value_norm
        self.window = window
        self.fold_at = fold_at
        self.fold_every = fold_every
        self.state_dtype = state_dtype
        self._check_combination(near_window, near_norm, learn_order_weights)
        if near_window is not None:
            self.near = NearWindow(num_heads, near_window, norm=near_norm, divides=self._divides, causal=self.causal)

        orders = 0 if self.kernel is None else len(self.kernel.orders)
        self._folds: dict[torch.dtype, int] = {}
        self.order_logits = nn.Parameter(torch.zeros(num_heads, orders)) if learn_order_weights else None
        self.position_power = nn.Parameter(torch.full((self.num_kv_heads,), 0.5)) if value_norm == "position" else None
        self.add_skip_and_gate()
        self.out_norm = RMSNorm(self.inner_dim) if norm in ("output", "sum-output") else None
        initialise(self, init)

    @classmethod
    def layer_type(cls, options: dict[str, Any]) -> str:
        if options.get("order", 1) is not None:
            return "linear_attention"
        return "full_attention" if options.get("window") is None else "sliding_attention"

    def _check_combination(self, near_window: int | None, near_norm: str, learn_order_weights: bool) -> None:
        """Options that do not go together."""
        softmax = self.kernel is None
        if self.decay == "channel" and self.order not in (1, 2):
            raise ValueError(f"decay='channel' needs order 1 or 2, got {self.order}")
        if self.fold_at is not None and (softmax or self._sums_at_once):
            raise ValueError(
                "fold_at needs an order above 1, no decay per channel: softmax folds no tokens, the others each at once"
            )
        if softmax and self.norm == "none":
            raise ValueError("norm='none' leaves exp(score) unbounded: softmax (order=None) needs 'sum' or 'output'")
        if not softmax and self.window is not None:
            raise ValueError("window needs softmax scores (order=None)")
        if softmax and near_window is not None:
            raise ValueError("near_window needs a linear mechanism: for softmax (order=None), use window")
        if not self.causal and softmax and (self.decay != "none" or self.window is not None):
            raise ValueError("causal=False needs softmax without decay and window")
        if learn_order_weights and (self.kernel is None or len(self.kernel.orders) < 2):
            raise ValueError("learn_order_weights=True needs several orders, such as order=(0, 1, 2)")
        if near_window is None and near_norm != "each":
            raise ValueError(f"near_norm={near_norm!r} needs near_window")

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        q, v = p.q, p.v
        if self.position_power is not None:
            assert p.positions is not None
            count = (p.positions + 1).to(torch.promote_types(v.dtype, torch.float32))
            v = (v / count[..., None, None] ** torch.sigmoid(self.position_power)[:, None]).to(v.dtype)
        if self.norm == "output" and self.kernel is not None:
            q = wide(q)  # and with it y: sums of any size, until they are normalised
        y, attention = self.mechanism(q, p.k, v, p.log_decay, None if state is None else state.attention, call)
        return self.finish(self.with_skip(y, p), x), self.state_after(p, attention)

    def project(self, x: Tensor, state: MixerState | None = None, call: Call = AT_ONCE) -> Projections:
        p = super().project(x, state, call)
        if self.feature_map != OVER_HEADS:
            return p
        q, k = (F.normalize(wide(x), dim=2).to(x.dtype) for x in (p.q, p.k))  # float16 has no room for the eps
        return replace(p, q=q, k=k)

    @property
    def packs(self) -> bool:
        return self.causal and not self._needs_position and self.selective is None

    @property
    def folds(self) -> bool:
        """Not where heads that share decays have states of their own, or where features are pairs of channels that decay."""
        alike = self.num_heads == self.num_kv_heads or self.order_logits is None
        return super().folds and alike and not (self.decay == "channel" and self.order == 2)

    @property
    def whole_because(self) -> str | None:
        return "'cosine-over-heads' compares heads" if self.feature_map == OVER_HEADS else super().whole_because

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        y = self.gated(y_BTHV, x)
        return self.to_output(y if self.out_norm is None else self.out_norm(y), x)

    @property
    def mechanism(self) -> Mechanism:
        return self.scoring()

    def scoring(self) -> Mechanism:
        """A method beside the property: in a graph of `torch.compile`, a subclass cannot ask for a property of its base."""
        # cosine features are the score itself; all others are scaled by 1/√d, which a normaliser may cancel
        scale = 1.0 if self.feature_map in ("cosine", OVER_HEADS) else None
        features = "identity" if self.feature_map == OVER_HEADS else self.feature_map  # which has been computed
        if self.kernel is None:
            # before an output norm the sum cancels, and keeps exp(score) in range
            return Softmax(features, scale, self.causal, window=self.window)
        normalize = self._divides
        far: Mechanism
        if self.order == 1:
            far = Linear(features, scale, self.causal, normalize=normalize)
        else:
            far = Power(
                features,
                scale,
                self.causal,
                normalize=normalize,
                order=self.kernel.orders if isinstance(self.order, tuple) else self.kernel.orders[0],
                order_weights=None if self.order_logits is None else 2 * torch.sigmoid(self.order_logits),
                fold_at=None if self.fold_at is None and torch.compiler.is_compiling() else self._fold_at,
                fold_every=self.fold_every,
                state_dtype=self.state_dtype,
            )
        return far if self.near is None else self.near.beside(far)

    @property
    def _divides(self) -> bool:
        """Whether outputs are divided by the sum of their weights."""
        return self.norm in ("sum", "sum-output")

    @property
    def _features_fit(self) -> bool:
        return self.kernel is not None and self.kernel.feature_count(self.key_dim) <= MOST_FEATURES

    @property
    def _needs_position(self) -> bool:
        return self.rotary == "rope" or self.position_power is not None

    @property
    def _state_heads(self) -> int:
        """Query heads that weigh the orders in their own way cannot share a state."""
        return self.num_kv_heads if self.order_logits is None else self.num_heads

    def _recurrent_shape(self) -> tuple[int, int, int]:
        assert self.kernel is not None
        return self._state_heads, self.kernel.feature_count(self.key_dim), self.head_dim + self._divides

    def _fold_at(self, dtype: torch.dtype) -> int:
        """The first length at which the folded state takes fewer bytes than the KV cache of softmax would.

        1058 tokens for d = 64 if both have the same precision, twice that if the KV cache is bfloat16.
        """
        if self.fold_at is not None:
            return self.fold_at
        if dtype not in self._folds:  # every decoding step asks
            self._folds[dtype] = self._first_fold(Zeros(1, "meta", dtype)) if self._features_fit else 2**62
        return self._folds[dtype]

    def _first_fold(self, zeros: Zeros) -> int:
        buffered = 0 if self.decay == "none" else self.fold_every - 1
        decays = zeros(buffered, self._state_heads, dtype=zeros.wide)
        folded = self.carrying(LinearState(zeros(*self._recurrent_shape(), dtype=zeros.wide)), zeros)
        token = self.num_kv_heads * (self.key_dim + self.head_dim) * zeros.dtype.itemsize
        return (folded.nbytes + decays.numel() * decays.element_size()) // token + 1

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        attention: State
        if self.kernel is None:
            kept = tokens if self.window is None else min(tokens, self.window - 1)
            attention = self.tokens_of(TokenState, kept, self.num_kv_heads, zeros)
        elif self._sums_at_once:
            attention = LinearState(zeros(*self._recurrent_shape(), dtype=zeros.wide))
        else:
            kept = buffered(tokens, self._fold_at(self._key_dtype(zeros.dtype)), self.fold_every)
            recurrent = zeros(*self._recurrent_shape(), dtype=zeros.wide) if kept < tokens else None
            attention = replace(self.tokens_of(PowerState, kept, self._state_heads, zeros), recurrent=recurrent)
        return self.carrying(self.beside_window(attention, tokens, zeros), zeros)

    def _key_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(dtype, torch.float32) if self.feature_map == "exp" else dtype


PAPER_1 = "Mongaras, Larson: On the Expressiveness of Softmax Attention: an RNN Perspective, arXiv 2507.23632, 2025"
PAPER_2 = "Mongaras, Larson: 2Mamba2Furious, arXiv 2602.17363, 2026"

register(
    "softmax",
    Attention,
    "softmax attention with exact rotary positions",
    "Vaswani et al.: Attention Is All You Need, 2017",
    order=None,
    rotary="rope",
)
register(
    "sliding-window",
    Attention,
    "softmax attention over the last `window` tokens, with exact rotary positions",
    "Beltagy et al.: Longformer, 2020; in hybrids with the mLSTM: SWAX, arXiv 2509.24552, 2025",
    order=None,
    rotary="rope",
    window=128,
)
register(
    "linear",
    Attention,
    "first-order attention with ReLU features, divided by the sum of the weights",
    "Katharopoulos et al.: Transformers are RNNs, 2020; " + PAPER_2,
    order=1,
    feature_map="relu",
)
register(
    "mamba2s",
    Attention,
    "Mamba-2S: first order behind a softplus decay, short convolution, discretised values, output norm",
    PAPER_2,
    order=1,
    norm="output",
    conv_width=2,
    decay="softplus",
    value_discretization="dt",
)
register(
    "2mamba",
    Attention,
    "2Mamba: squared scores behind a softplus decay, short convolution, divided by the sum of the weights",
    PAPER_2,
    order=2,
    conv_width=2,
    decay="softplus",
)
register(
    "2mamba-gated",
    Attention,
    "2Mamba in the surroundings of Mamba-2: convolution of 4 taps, skip and output gate",
    "defined here, on the mechanism of " + PAPER_2,
    order=2,
    conv_width=4,
    decay="softplus",
    skip=True,
    gate=True,
)
register(
    "2mamba-orders",
    Attention,
    "orders 0, 1 and 2 behind one decay, each with a learned weight per head; convolution of 4 taps, skip and output gate",
    "defined here, found by `maclaurin suite search`, on the mechanism of " + PAPER_2,
    order=(0, 1, 2),
    learn_order_weights=True,
    conv_width=4,
    decay="softplus",
    skip=True,
    gate=True,
)
register(
    "2mamba-e",
    Attention,
    "2Mamba-E: softmax behind a softplus decay, short convolution, no rotary positions",
    PAPER_2,
    order=None,
    conv_width=2,
    decay="softplus",
)
