"""Softmax over the last tokens beside a mechanism that sees all of them, from the same queries, keys and values:

    y = σ(g)·near + (1 − σ(g))·far,   g a head, 0 at first

LoLCATs (Zhang et al., arXiv 2410.10254) puts both under one sum of weights; two sums and a gate keep either state what it
is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.base import Call
from maclaurin.ops import checks
from maclaurin.ops.softmax import softmax_attention
from maclaurin.ops.states import State, TokenState


@dataclass(frozen=True)
class NearState(State):
    far: State
    near: TokenState


class NearWindow(nn.Module):
    """window: how many tokens a query sees near it, itself included."""

    def __init__(self, num_heads: int, window: int, *, causal: bool) -> None:
        super().__init__()
        at_least_one("near_window", window)
        if not causal:
            raise ValueError("a window beside another mechanism needs a decoder: an encoder's tokens see both ways")
        self.window = window
        self.gate = nn.Parameter(torch.zeros(num_heads))

    def split(self, state: State | None) -> tuple[State | None, TokenState | None]:
        """The far and the near part of a state."""
        kept = checks.initial_state(state, NearState)
        return (None, None) if kept is None else (kept.far, kept.near)

    def forward(
        self,
        far: tuple[Tensor, State | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: TokenState | None,
        call: Call,
        reach: int | None = None,
    ) -> tuple[Tensor, State | None]:
        """far: what the other mechanism gives. reach: how far back anything may look."""
        window = self.window if reach is None else min(reach, self.window)
        near_BTHV, near_state = softmax_attention(q, k, v, window=window, **call.with_state(state))
        far_BTHV, far_state = far
        share_H1 = self.share().to(near_BTHV.dtype)[:, None]
        y_BTHV = share_H1 * near_BTHV + (1 - share_H1) * far_BTHV.to(near_BTHV.dtype)
        return y_BTHV, None if far_state is None or near_state is None else NearState(far_state, near_state)

    def share(self) -> Tensor:
        """Of what is near (H,)."""
        return torch.sigmoid(self.gate)


def beside_near(
    near: NearWindow | None,
    attend: Callable[[State | None], tuple[Tensor, State | None]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None,
    call: Call,
    reach: int | None = None,
) -> tuple[Tensor, State | None]:
    """What a mechanism makes of its part of a state, and the window beside it where there is one."""
    if near is None:
        return attend(state)
    far, tokens = near.split(state)
    both: tuple[Tensor, State | None] = near(attend(far), q, k, v, tokens, call, reach)
    return both
