"""What is not a number at one token never reaches the tokens before it.

Fast forms give a later token the weight 0 where the recurrent form never sees it, and 0 times infinity or NaN is NaN. So
an output with a NaN that neither its own query nor the past explains is computed again in halves, each with the state of
the one before it, until every such token is the first of its part: whatever a part does with it, the past is done. All
that an ordinary call pays is one look at its output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from maclaurin.ops.arithmetic import has_nan
from maclaurin.ops.ragged import DenseOp, Inputs, part
from maclaurin.ops.states import State
from maclaurin.ops.transforms import numbers

S = TypeVar("S", bound=State)
Result = tuple[Tensor, S | None]
StatefulOp = Callable[[Inputs, S | None, Tensor | None, bool], Result[S]]  # inputs, state, lengths, return_state


def causally(op: StatefulOp[S], *, form: str, return_state: bool, forgets: bool = False) -> DenseOp[S]:
    """`op`, whose first input are queries (B,T,H,K) and whose output is (B,T,H,V), as `over_documents` takes it.

    forgets: whether a token leaves the state again, as in a window; otherwise what is NaN once stays NaN.
    """

    def guarded(inputs: Inputs, state: S | None, lengths: Tensor | None) -> Result[S]:
        y, new_state = op(inputs, state, lengths, return_state)
        if form == "recurrent" or y.shape[1] == 1 or not has_nan(y):
            return y, new_state
        return _in_parts(op, inputs, state, lengths, return_state, forgets)

    return guarded


def _in_parts(
    op: StatefulOp[S], inputs: Inputs, state: S | None, lengths: Tensor | None, return_state: bool, forgets: bool
) -> Result[S]:
    """The result of op, or of its halves where some NaN of it may come from a later token."""
    q = inputs[0]
    assert q is not None
    T = q.shape[1]
    y, new_state = op(inputs, state, lengths, return_state)
    own = q.isfinite().all(-1, keepdim=True).logical_not()
    unexplained = y.isnan() & ~own
    if not forgets and bool(numbers(unexplained).any()):
        # what is NaN at the first token, whose query is not to blame, is NaN in the state
        first_inputs, first_lengths = part(inputs, lengths, 0, 1)
        first, _ = op(first_inputs, state, first_lengths, False)
        unexplained = unexplained & (~first.isnan() | own[:, :1])
    if T == 1 or not bool(numbers(unexplained).any()):
        return y, new_state
    inputs_left, lengths_left = part(inputs, lengths, 0, T // 2)
    left, between = _in_parts(op, inputs_left, state, lengths_left, True, forgets)
    inputs_right, lengths_right = part(inputs, lengths, T // 2, T)
    right, end = _in_parts(op, inputs_right, between, lengths_right, return_state, forgets)
    return torch.cat([left, right], dim=1), end
