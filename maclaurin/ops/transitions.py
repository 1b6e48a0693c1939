"""What the tokens of a slice do to the state before them, so that slices of a sequence can be computed apart and joined:

    state = second.after(first, transition of the second slice)

where `second` is the state of the second slice alone. The transitions of two slices are joined by adding log decays, and by
the product of matrices, the later one on the left. All of it is differentiable. A window has no numbers to decay: its
transition is how many of the earlier tokens it still reaches.
"""

# B batch, T time, G key-value heads, K key channels, F features

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops import decay
from maclaurin.ops.delta import delta_rule
from maclaurin.ops.features import Kernel
from maclaurin.ops.states import DeltaState


def decay_transition(log_decay: Tensor) -> Tensor:
    """log_decay (B,T,...) -> its sum over time, of linear and power attention, scans, and the mLSTM, whose log decay is the
    log-sigmoid of the forget gate."""
    return decay.cumulative(log_decay, 1)[:, -1]


def window_transition(k: Tensor, window: int) -> Tensor:
    """k (B,T,G,K) -> how many of the tokens before these stay in a window of so many, as a whole number."""
    return torch.full((), max(0, window - 1 - k.shape[1]), dtype=torch.long, device=k.device)


def delta_transition(k: Tensor, beta: Tensor, log_decay: Tensor | None = None, *, order: int = 1) -> Tensor:
    """k (B,T,G,K), beta and log_decay (B,T,G) -> the product (B,G,F,F) of exp(a_t)·(I - β_t φ(k_t)φ(k_t)ᵀ), the last token
    on the left: what becomes of the identity as a state, where nothing is written."""
    features = Kernel.of(order).feature_count(k.shape[3])
    dtype = torch.promote_types(k.dtype, torch.float32)
    identity = torch.eye(features, dtype=dtype, device=k.device).expand(k.shape[0], k.shape[2], -1, -1)
    nothing = torch.zeros(*k.shape[:3], features, dtype=k.dtype, device=k.device)
    _, after = delta_rule(k, k, nothing, beta, log_decay, order=order, state=DeltaState(identity))
    assert after is not None
    return after.recurrent
