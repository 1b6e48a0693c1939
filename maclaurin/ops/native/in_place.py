"""Decoding steps of first-order attention that write the states of all sequences where they are.

The op returns a new state beside the one it is given, which a caller that keeps states in slots would copy back: three
times as much memory as the state itself, and of many sequences more than the caches hold.
"""

# B batch, H heads, G key-value heads, K, V channels, W = V or V+1

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from maclaurin.ops.arithmetic import repeat_heads
from maclaurin.ops.native.library import buffer, rows, run
from maclaurin.ops.native.linear import LONGEST_BLOCK, linear_call
from maclaurin.ops.states import StandIn


class InPlace(StandIn):
    """Stands for a LinearState whose recurrent state (B,G,K,W), dense, is written by every step."""

    recurrent: ClassVar[Tensor]  # of each one; not a field

    @classmethod
    def of(cls, recurrent: Tensor) -> InPlace:
        state = cls()
        object.__setattr__(state, "recurrent", recurrent)
        return state

    @property
    def batch_size(self) -> int:
        return self.recurrent.shape[0]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, normalize: bool
    ) -> tuple[Tensor, Any]:
        """y (B,1,H,V) of one token of every sequence; arguments as in `linear_attention`."""
        if log_decay is not None and log_decay.shape[2] != k.shape[2]:
            k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
        (B, T, H, K), (G, V) = q.shape, v.shape[2:]
        needed = (B, G, K, V + normalize)
        if T != 1 or tuple(self.recurrent.shape) != needed or not self.recurrent.is_contiguous():
            raise ValueError(f"a step in place needs one token and a dense state {needed}, got {T}, {self.recurrent.shape}")
        fit = k.shape == (B, 1, G, K) and v.shape == (B, 1, G, V) and not H % G
        if not fit or (log_decay is not None and log_decay.shape not in ((B, 1, G), (B, 1, G, K))):
            given = [tuple(x.shape) for x in (q, k, v, log_decay) if x is not None]
            raise ValueError(f"q, k, v and log_decay of a step in place must fit each other, got {given}")
        dtype, (q, k, v) = q.dtype, (rows(x.float()) for x in (q, k, v))
        log_decay = None if log_decay is None else rows(log_decay.float())
        y, total = buffer(B, 1, H, V), buffer(B, 1, H)
        call = linear_call(q, k, v, log_decay, (scale, 1.0, normalize, LONGEST_BLOCK, True), y=y, total=total)
        call.state = call.new_state = self.recurrent.data_ptr()
        call.state_head = K * needed[3]
        run("linear_forward", call)
        return y.to(dtype), self
