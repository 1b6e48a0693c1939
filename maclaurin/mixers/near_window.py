"""Softmax over the last tokens beside a mechanism that sees all tokens, from the same queries, keys and values:

    y = σ(g)·near + (1 − σ(g))·far,   one g per head, initially 0

LoLCATs (Zhang et al., arXiv 2410.10254) divides both by one sum of weights; with two sums and a gate, each state is the same
as that of its mechanism alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.base import Call
from maclaurin.mixers.mechanisms import Mechanism, Softmax, Tokens
from maclaurin.ops import checks
from maclaurin.ops.states import State, TokenState


@dataclass(frozen=True)
class NearState(State):
    far: State
    near: TokenState


class NearWindow(nn.Module):
    """window: how many of the last tokens a query sees, itself included."""

    def __init__(self, num_heads: int, window: int, *, causal: bool) -> None:
        super().__init__()
        at_least_one("near_window", window)
        if not causal:
            raise ValueError("a window beside another mechanism needs a decoder: an encoder's tokens see both ways")
        self.window = window
        self.gate = nn.Parameter(torch.zeros(num_heads))

    def beside(self, far: Mechanism) -> Mechanism:
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
        share_H1 = self.share.to(near_BTHV.dtype)[:, None]
        y_BTHV = share_H1 * near_BTHV + (1 - share_H1) * far_BTHV.to(near_BTHV.dtype)
        if far_state is None or near_state is None:
            return y_BTHV, None
        assert isinstance(near_state, TokenState)
        return y_BTHV, NearState(far_state, near_state)

    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        near_BHTS = self.near.weights(q, k, None, visible_TS)
        far_BHTS = self.far.weights(q, k, log_decay, visible_TS)
        share_H11 = self.share.double()[:, None, None]
        return share_H11 * near_BHTS + (1 - share_H11) * far_BHTS

    def within(self, reach: int | None) -> Mechanism:
        return replace(self, near=self.near.within(reach), far=self.far.within(reach))
