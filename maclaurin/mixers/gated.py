"""Gated softmax: softmax attention with its denominator replaced, one choice at a time (arXiv 2507.23632, its second half).

    y_t = outer gate ⊙ norm(inner gate ⊙ Σ_s f(q_t·k_s/√d)·(in gate_s ⊙ v_s) / n_t)

The authors' variants combine five independent choices, which are the options here. A positive factor per query in
front of a norm cancels, so several published names are one model; where a norm follows, uncapped exponentials are divided
by their sum, which keeps them in range and changes nothing else. The authors gate, then normalise (`out_gate=
"before-norm"`), but for one row; a gate behind the norm is the default here, since before it it cancels but for the norm's
epsilon. Left out: a "cumulative" gate whose sum runs over an axis of length one, and a decay that may grow (here a =
−softplus(g)·decay_scale).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import one_of
from maclaurin.mixers.attention import PAPER_1
from maclaurin.mixers.base import Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.mechanisms import Softmax
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.softmax import NUMERATORS
from maclaurin.ops.states import TokenState
from maclaurin.ops.tokens import without_padding

DIVISORS = ("sum", "floored-sum", "count", "none", "cumulative-gate")
OUT_GATES = ("none", "before-norm", "after-norm")
GATE_ACTIVATIONS = ("sigmoid", "exp")
NORMS = ("none", "layer", "rms", "l2", "scaled-l2")


class GatedSoftmax(ProjectedMixer):
    """Options beside those of every projected mixer:

    numerator: "exp", or "relu" for relu(q)·relu(k). score_cap: the largest score, None for no cap.
    divisor: "sum" of the weights, "floored-sum" (at least 1), "count" of the visible keys, "none", or "cumulative-gate", the
    sum of exp(x·W_g) over the tokens so far, at least 1. detach_divisor: no gradient through it. divisor_epsilon: added to
    the sum.
    in_gate: multiplies v by one sigmoid per head. out_gate: multiplies the output "before-norm" or "after-norm";
    out_gate_activation: "sigmoid", or "exp" for exp(−g). norm: of each head's output, "layer", "rms", "l2" or "scaled-l2".
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    own_gate = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        numerator: str = "exp",
        score_cap: float | None = 5.0,
        divisor: str = "count",
        detach_divisor: bool = False,
        divisor_epsilon: float = 0.0,
        in_gate: bool = True,
        out_gate: str = "after-norm",
        out_gate_activation: str = "sigmoid",
        norm: str = "layer",
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("numerator", numerator, NUMERATORS)
        one_of("divisor", divisor, DIVISORS)
        one_of("out_gate", out_gate, OUT_GATES)
        one_of("out_gate_activation", out_gate_activation, GATE_ACTIVATIONS)
        one_of("norm", norm, NORMS)
        unbounded = numerator == "exp" and score_cap is None and divisor not in ("sum", "floored-sum")
        if unbounded and norm == "none":
            raise ValueError(f"divisor={divisor!r} leaves exp(score) unbounded: give a score_cap or a norm")
        if divisor_epsilon and divisor != "sum":
            raise ValueError(f"divisor_epsilon needs divisor='sum', got divisor={divisor!r}")
        if divisor_epsilon < 0:
            raise ValueError(f"divisor_epsilon must not be negative, got {divisor_epsilon}")
        self.numerator = numerator
        self.score_cap = score_cap
        self.divisor = "sum" if unbounded else divisor
        self.detach_divisor = detach_divisor
        self.divisor_epsilon = divisor_epsilon
        self.out_gate = out_gate
        self.out_gate_activation = out_gate_activation
        self.norm = norm

        self.in_gate_proj = nn.Linear(d_model, self.num_kv_heads) if in_gate else None
        self.out_gate_proj = nn.Linear(d_model, num_heads) if out_gate != "none" else None
        self.divisor_proj = nn.Linear(d_model, num_heads) if self.divisor == "cumulative-gate" else None
        self.out_norm: nn.Module | None = None
        if norm == "layer":
            self.out_norm = nn.LayerNorm(self.head_dim)
        elif norm == "rms":
            self.out_norm = RMSNorm(self.head_dim)
        self.add_skip_and_gate()
        initialise(self, init)

    @property
    def folds(self) -> bool:
        return super().folds and self.divisor_proj is None

    @classmethod
    def layer_type(cls, options: dict[str, Any]) -> str:
        return "full_attention"

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        v = p.v
        if self.in_gate_proj is not None:
            v = (v * torch.sigmoid(wide(self.in_gate_proj(x)))[..., None]).to(v.dtype)
        y, attention = self.mechanism(p.q, p.k, v, p.log_decay, None if state is None else state.attention, call)
        gate_sum = None
        if self.divisor_proj is not None:
            grown = without_padding(wide(self.divisor_proj(x)).exp(), call.lengths).cumsum(1)
            if state is not None and state.gate_sum is not None:
                grown = grown + state.gate_sum[:, None]
            gate_sum = grown[:, -1].clone()  # a view would keep the sums of all tokens alive
            y = y / grown.clamp(min=1)[..., None]
        after = self.state_after(p, attention)
        return self.finish(self.with_skip(y, p), x), None if after is None else replace(after, gate_sum=gate_sum)

    @property
    def mechanism(self) -> Softmax:
        return Softmax(
            "relu" if self.numerator == "relu" else "identity",
            numerator=self.numerator,
            divisor="none" if self.divisor_proj is not None else self.divisor,
            detach_divisor=self.detach_divisor,
            divisor_epsilon=self.divisor_epsilon,
            score_cap=self.score_cap,
        )

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        y = wide(y_BTHV)
        if self.out_gate == "before-norm":
            y = y * self._out_gate(x)
        y = self._normalised(y)
        if self.out_gate == "after-norm":
            y = y * self._out_gate(x)
        return super().finish(y, x)

    def _out_gate(self, x: Tensor) -> Tensor:
        assert self.out_gate_proj is not None
        g = wide(self.out_gate_proj(x))[..., None]
        return torch.sigmoid(g) if self.out_gate_activation == "sigmoid" else torch.exp(-g)

    def _normalised(self, y: Tensor) -> Tensor:
        if isinstance(self.out_norm, nn.LayerNorm):
            # weight and bias apart: inside, their gradients would be summed in as many pieces as there are threads
            centred = F.layer_norm(y, self.out_norm.normalized_shape, eps=self.out_norm.eps)
            return centred * wide(self.out_norm.weight) + wide(self.out_norm.bias)
        if self.out_norm is not None:
            normalised: Tensor = self.out_norm(y)
            return normalised
        if self.norm == "none":
            return y
        scale = self.head_dim if self.norm == "scaled-l2" else 1.0
        return F.normalize(y, dim=-1) * scale

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        attention = self.tokens_of(TokenState, tokens, self.num_kv_heads, zeros)
        gate_sum = None if self.divisor_proj is None else zeros(self.num_heads, dtype=zeros.wide)
        return replace(self.carrying(attention, zeros), gate_sum=gate_sum)


register(
    "gated-softmax",
    GatedSoftmax,
    "softmax attention with gates and a norm in place of its denominator",
    PAPER_1,
    rotary="rope",
)
