"""Softmax over the last tokens beside a mechanism that sees all tokens, from the same queries, keys and values:

    near_norm="each"    y = σ(g)·near + (1 − σ(g))·far                              one g per head, initially 0
    near_norm="joint"   y = Σ_s w_ts v_s / Σ_s w_ts,   w_ts = σ(g)·exp(min(x_ts, 30)) within the window + (1 − σ(g))·far_ts

With two sums and a gate, each state is the same as that of its mechanism alone. With one sum, as in LoLCATs (Zhang et al.,
arXiv 2410.10254), a query that finds nothing far away turns to what is near, whatever its gate says; LoLCATs lets the far
part see only what the window does not. Values then carry a one, which sums the weights in both states.
"""

# B batch, T time, S keys, H heads, V value channels, W = V+1

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.mixers.base import Call
from maclaurin.mixers.mechanisms import Linear, Mechanism, Softmax, Tokens
from maclaurin.ops import checks
from maclaurin.ops.arithmetic import safe_divide, wide
from maclaurin.ops.states import State, TokenState

NEAR_NORMS = ("each", "joint")
CAP = 30.0  # of scores in the window: sums of their exponentials, and gradients of quotients, stay in the range of float32


@dataclass(frozen=True)
class NearState(State):
    far: State
    near: TokenState


class NearWindow(nn.Module):
    """window: how many of the last tokens a query sees, itself included. divides: whether the far part does, by its sum."""

    def __init__(self, num_heads: int, window: int, *, causal: bool, norm: str = "each", divides: bool = True) -> None:
        super().__init__()
        at_least_one("near_window", window)
        one_of("near_norm", norm, NEAR_NORMS)
        if not causal:
            raise ValueError("a window beside another mechanism needs a decoder: an encoder's tokens see both ways")
        if norm == "joint" and not divides:
            raise ValueError("near_norm='joint' needs a far mechanism that divides by the sum of its weights: norm='sum'")
        self.window = window
        self.joint = norm == "joint"
        self.gate = nn.Parameter(torch.zeros(num_heads))

    def beside(self, far: Mechanism) -> Mechanism:
        if self.joint:
            assert isinstance(far, Linear)
            near = Softmax(window=self.window, divisor="none", score_cap=CAP)
            return JointWindow(near, replace(far, normalize=False), torch.sigmoid(self.gate))
        return BesideWindow(Softmax(window=self.window), far, torch.sigmoid(self.gate))


@dataclass(eq=False)
class BesideWindow(Mechanism):
    """share (H,): the weight of `near`."""

    near: Softmax
    far: Mechanism
    share: Tensor

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        q, k, v, log_decay = tokens
        kept = checks.initial_state(state, NearState)
        far_BTHV, far_state = self.far(q, k, v, log_decay, None if kept is None else kept.far, call)
        near_BTHV, near_state = self.near(q, k, v, None, None if kept is None else kept.near, call)
        y_BTHV = self._mixed(near_BTHV, far_BTHV.to(near_BTHV.dtype), self.share.to(near_BTHV.dtype)[:, None])
        if far_state is None or near_state is None:
            return y_BTHV, None
        assert isinstance(near_state, TokenState)
        return y_BTHV, NearState(far_state, near_state)

    @staticmethod
    def _mixed(near: Tensor, far: Tensor, share: Tensor) -> Tensor:
        return share * near + (1 - share) * far

    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        near_BHTS = self.near.weights(q, k, None, visible_TS)
        far_BHTS = self.far.weights(q, k, log_decay, visible_TS)
        return self._mixed(near_BHTS, far_BHTS, self.share.double()[:, None, None])

    def within(self, reach: int | None) -> Mechanism:
        return replace(self, near=self.near.within(reach), far=self.far.within(reach))


@dataclass(eq=False)
class JointWindow(BesideWindow):
    """Both without a divisor of their own."""

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        q, k, v, log_decay = tokens
        v_BTGW = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        sums_BTHW, after = super()._attend((wide(q), k, v_BTGW, log_decay), state, call)
        return safe_divide(sums_BTHW[..., :-1], sums_BTHW[..., -1:]).to(q.dtype), after

    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        weights_BHTS = super().weights(q, k, log_decay, visible_TS)
        return safe_divide(weights_BHTS, weights_BHTS.sum(-1, keepdim=True))
