"""The weights of softmax for what is near, those of a linear mechanism for what is further away, and one sum of both:

    y_t = Σ_s w_ts v_s / Σ_s w_ts
    w_ts = exp(min(x_ts, 30))     s among the last `window` tokens, or the first token of the sequence
    w_ts = exp(g) · far_ts        all tokens between                                     one g per head

The exponentials are those of the source, so they are exact. Far weights are only an estimate, and replace nothing exact: in
LoLCATs (Zhang et al., arXiv 2410.10254) too a far weight never belongs to a token in the window. The first token is among
the near ones because trained models give it the attention that they have no use for (Xiao et al., arXiv 2309.17453).

Values carry a one, which sums the weights. An empty slot and the first token, which is kept apart, have a zero there, so
that nothing else needs a mask.
"""

# B batch, T new tokens, S = window + T slots, N blocks of P queries, C = window + P slots that a block sees
# H heads, G key-value heads, R = H/G, K key channels, V value channels with the one

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.mixers.base import Call
from maclaurin.mixers.mechanisms import SEGMENT, Linear, Mechanism, Softmax, Tokens
from maclaurin.mixers.near_window import CAP
from maclaurin.ops import checks
from maclaurin.ops.arithmetic import default_scale, repeat_heads, safe_divide, wide, without_autocast
from maclaurin.ops.states import State, TokenState
from maclaurin.ops.tokens import without_padding


@dataclass(frozen=True)
class BeyondState(State):
    """far: of the tokens that have left the window. near: the last `window` tokens, right-aligned; first: the first one."""

    far: State
    near: TokenState
    first: TokenState


@dataclass(eq=False)
class BeyondWindow(Mechanism):
    """far: without a divisor of its own. log_scale (H,): g."""

    far: Linear
    log_scale: Tensor
    window: int

    def _attend(self, tokens: Tokens, state: State | None, call: Call) -> tuple[Tensor, State | None]:
        """Segment by segment, because the scores of a window take more memory than its tokens."""
        *qkv, log_decay = tokens
        T = tokens[0].shape[1]
        outputs = []
        for start in range(0, T, SEGMENT):
            length = min(SEGMENT, T - start)
            cut = [None if x is None else x.narrow(1, start, length) for x in (*qkv, log_decay)]
            y, state = self._segment(cut, state, call.part(start, length, last=start + length == T))
            outputs.append(y)
        return torch.cat(outputs, dim=1), state

    @without_autocast  # rounded to 8 bits, a score of 20 would change a weight by a tenth
    def _segment(self, tokens: list[Tensor | None], state: State | None, call: Call) -> tuple[Tensor, State | None]:
        q, k, v, log_decay = tokens
        assert q is not None and k is not None and v is not None
        kept = checks.initial_state(state, BeyondState)
        q_BTHK, k_BTGK = wide(q), wide(k)
        v_BTGV = without_padding(pad(wide(v), (0, 1), value=1.0), call.lengths)
        first = self._first(None if kept is None else kept.first, k_BTGK, v_BTGV)
        is_first = first.values[:, 0, 0, -1] * (kept is None or kept.first.values[:, 0, 0, -1] == 0)
        v_BTGV = torch.cat([v_BTGV[:, :1] * (1 - is_first)[:, None, None, None], v_BTGV[:, 1:]], dim=1)
        k_BSGK, v_BSGV = (self._after(None if kept is None else getattr(kept.near, name), x)
                          for name, x in (("keys", k_BTGK), ("values", v_BTGV)))  # fmt: skip
        T, W = q.shape[1], self.window
        far_BTHV, far = self.far(
            q, k_BSGK[:, :T].to(k.dtype), v_BSGV[:, :T], log_decay, None if kept is None else kept.far, call
        )
        scale = default_scale(None, q)
        sums_BTHV = _windows(scale * q_BTHK, k_BSGK, v_BSGV, W) + self.log_scale.exp()[:, None] * far_BTHV
        sums_BTHV = sums_BTHV + _of_first(scale * q_BTHK, first)
        y = safe_divide(sums_BTHV[..., :-1], sums_BTHV[..., -1:]).to(q.dtype)
        if far is None:
            return y, None
        near = TokenState(*(_last(x, W, call.lengths) for x in (k_BSGK, v_BSGV)))
        return y, BeyondState(far, near, first)

    def _after(self, kept: Tensor | None, new: Tensor) -> Tensor:
        """The slots of the window, empty at first, and the new tokens."""
        return pad(new, (0, 0, 0, 0, self.window, 0)) if kept is None else torch.cat([kept.to(new.dtype), new], dim=1)

    @staticmethod
    def _first(kept: TokenState | None, k: Tensor, v: Tensor) -> TokenState:
        """That of every sequence; where nothing came before, the first new one."""
        if kept is None:
            return TokenState(k[:, :1], v[:, :1])
        has = kept.values[..., -1:] != 0
        return TokenState(torch.where(has, kept.keys, k[:, :1]), torch.where(has, kept.values, v[:, :1]))

    def weights(self, q: Tensor, k: Tensor, log_decay: Tensor | None = None, visible_TS: Tensor | None = None) -> Tensor:
        T, S = q.shape[1], k.shape[1]
        near_TS = torch.ones(T, S, dtype=torch.bool, device=q.device).tril().triu(1 - self.window)
        near_TS[:, 0] = True
        if visible_TS is not None:
            near_TS = near_TS & visible_TS
        softmax_BHTS = Softmax(divisor="none", score_cap=CAP).weights(q, k, None, visible_TS)
        # a far weight decays from the time at which its token leaves the window
        far_BHTS = self.far.weights(q, pad(k, (0, 0, 0, 0, self.window, 0))[:, :S], log_decay)
        far_BHTS = pad(far_BHTS, (0, self.window))[..., self.window :] * self.log_scale.double().exp()[:, None, None]
        far_BHTS = far_BHTS if visible_TS is None else far_BHTS * visible_TS
        weights_BHTS = torch.where(near_TS, softmax_BHTS, far_BHTS)
        return safe_divide(weights_BHTS, weights_BHTS.sum(-1, keepdim=True))

    @staticmethod
    def beside(far: Mechanism, log_scale: Tensor, window: int) -> BeyondWindow:
        assert isinstance(far, Linear)
        return BeyondWindow(replace(far, normalize=False), log_scale, window)


def _windows(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGV: Tensor, window: int) -> Tensor:
    """Σ exp(min(q_t·k_s, CAP)) v_s over the last `window` tokens, for S = window + T slots: blocks of queries at once."""
    T, G = q_BTHK.shape[1], k_BSGK.shape[2]
    P = min(window, T)
    blocks = math.ceil(T / P)
    missing = blocks * P - T
    q_BNPGRK = pad(q_BTHK, (0, 0, 0, 0, 0, missing)).unflatten(1, (blocks, P)).unflatten(3, (G, -1))
    k_BNCGK, v_BNCGV = (_overlapping(x, window, P, missing) for x in (k_BSGK, v_BSGV))
    score_BNGRPC = torch.einsum("bnpgrk,bncgk->bngrpc", q_BNPGRK, k_BNCGK)
    steps = torch.ones(P, window + P, dtype=torch.bool, device=q_BTHK.device)
    weight_BNGRPC = score_BNGRPC.clamp(max=CAP).masked_fill(~(steps.triu(1) & steps.tril(window)), -math.inf).exp()
    y_BNPGRV = torch.einsum("bngrpc,bncgv->bnpgrv", weight_BNGRPC, v_BNCGV)
    return y_BNPGRV.flatten(3, 4).flatten(1, 2)[:, :T]


def _overlapping(x_BSGK: Tensor, window: int, block: int, missing: int) -> Tensor:
    """(B, N, window + block, G, K): every block of new tokens behind the window before it."""
    if x_BSGK.shape[1] <= window + block:
        return x_BSGK[:, None]
    parts = pad(x_BSGK, (0, 0, 0, 0, 0, missing)).unflatten(1, (-1, block))  # here a block is as long as the window
    return torch.cat([parts[:, :-1], parts[:, 1:]], dim=2)


def _of_first(q_BTHK: Tensor, first: TokenState) -> Tensor:
    H = q_BTHK.shape[2]
    k_BHK, v_BHV = (repeat_heads(x, H)[:, 0] for x in (first.keys, first.values))
    score_BTH = torch.einsum("bthk,bhk->bth", q_BTHK, k_BHK)
    return score_BTH.clamp(max=CAP).exp()[..., None] * v_BHV[:, None]


def _last(x_BSGK: Tensor, count: int, lengths: Tensor | None) -> Tensor:
    """The `count` slots before the end of every sequence, in memory of their own."""
    if lengths is None:
        return x_BSGK[:, -count:].clone(memory_format=torch.contiguous_format)
    slot = torch.arange(count, dtype=torch.long, device=x_BSGK.device) + lengths[:, None]
    return x_BSGK.gather(1, slot[..., None, None].expand(-1, -1, *x_BSGK.shape[2:]))
