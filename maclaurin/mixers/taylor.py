"""Terms of the softmax series (arXiv 2507.23632): one power after another, on shared queries and keys or each on its own.

    w_ts = Σ_n (q_t·k_s/√d)ⁿ / n!                      all orders see the same queries and keys
    w_ts = Σ_n (q_tn·k_sn/√c)ⁿ / n!                    order_dim=c: each order has projections of its own, to c channels

The second is a prototype in the code of arXiv 2602.17363 that no table has: orders 0 to 4, each of q and k projected once
more, to √d channels, and rotated there; an RMS norm per head in place of the divisor. Two matrices in a row are one, so that
here the queries and keys of an order are projected from the token at once, and the norm is over all heads. Scores of
different orders have nothing to do with each other, so that their sum may be negative: there is no norm by the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.attention import PAPER_1, Attention
from maclaurin.mixers.base import MixerState, Zeros
from maclaurin.mixers.feature_maps import FeatureMap
from maclaurin.mixers.mechanisms import Linear, Mechanism
from maclaurin.mixers.registry import register
from maclaurin.ops.arithmetic import wide
from maclaurin.ops.features import Kernel
from maclaurin.ops.folding import MOST_FEATURES
from maclaurin.ops.states import LinearState


class SeparateOrders(FeatureMap):
    """x (B, T, H, orders above 0 · dim) -> φ with φ(x)·φ(y) = Σ_n (x_n·y_n/√dim)ⁿ / n!, a part x_n for each order n."""

    def __init__(self, orders: tuple[int, ...], dim: int) -> None:
        own = [Kernel.of((n,)) for n in orders if n]
        super().__init__(len(own) * dim, sum(kernel.feature_count(dim) for kernel in own) + (0 in orders))
        self.dim = dim
        self.own = own
        self.constant = 0 in orders
        if self.num_features > MOST_FEATURES:
            raise ValueError(f"order_dim={dim} makes {self.num_features} features, more than {MOST_FEATURES}")

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        parts = (wide(x) * self.dim**-0.25).split(self.dim, dim=-1)
        terms = [kernel.features(part) for kernel, part in zip(self.own, parts, strict=True)]
        return torch.cat([torch.ones_like(terms[0][..., :1]), *terms] if self.constant else terms, dim=-1)


class Taylor(Attention):
    """order: the terms 0..order of the softmax series, or those of a tuple such as (0, 2). The rest: as `Attention`.

    order_dim: how many channels the queries and keys of each order have, which are then its own; None for shared ones.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        order: int | Sequence[int] = 2,
        order_dim: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(order, Sequence):
            at_least_one("order", order)
            order = range(order + 1)
        orders = Kernel.of(order).orders
        separate = None
        if order_dim is not None:
            at_least_one("order_dim", order_dim)
            _check_separate(order_dim, options)
            separate = SeparateOrders(orders, order_dim)
            options["key_dim"] = separate.key_dim
        super().__init__(d_model, num_heads, order=orders, **options)
        self.separate = separate

    @property
    def turns_whole_heads(self) -> bool:
        return super().turns_whole_heads and self.separate is None

    def turned(self, part: Tensor, positions: Tensor | None) -> Tensor:
        """Each order by itself: a rotation over channels of several orders would not be one of either."""
        if self.separate is None:
            return super().turned(part, positions)
        by_order = part.unflatten(-1, (-1, self.separate.dim)).flatten(2, 3)
        return super().turned(by_order, positions).view_as(part)

    def options_of_part(self, parts: int) -> dict[str, Any]:
        options = super().options_of_part(parts)
        if self.separate is not None:
            del options["key_dim"]  # follows from order_dim
        return options

    def scoring(self) -> Mechanism:
        if self.separate is None:
            return super().scoring()
        far = Linear(self.separate, 1.0, self.causal, normalize=False)
        return far if self.near is None else self.near.beside(far)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        if self.separate is None:
            return super().state_of(tokens, zeros)
        sums = zeros(self.num_kv_heads, self.separate.num_features, self.head_dim, dtype=zeros.wide)
        return self.carrying(self.beside_window(LinearState(sums), tokens, zeros), zeros)


# what options must be where orders have projections of their own
WITH_SEPARATE: dict[str, tuple[Any, ...]] = {
    "norm": ("output", "none"),
    "key_dim": (None,),
    "feature_map": ("identity",),
    "learn_order_weights": (False,),
    "decay": ("none", "softplus", "forget", "mamba"),
    "rotary": ("none", "rope"),
    "fold_at": (None,),
}


def _check_separate(order_dim: int, options: dict[str, Any]) -> None:
    for name, allowed in WITH_SEPARATE.items():
        if (given := options.get(name, "sum" if name == "norm" else allowed[0])) not in allowed:
            raise ValueError(f"order_dim needs {name}={' or '.join(map(repr, allowed))}, got {given!r}")
    if options.get("rotary") == "rope" and order_dim % 2:
        raise ValueError(f"order_dim must be even with rotary='rope', got {order_dim}")


register(
    "taylor",
    Taylor,
    "the terms 0..order of the softmax series",
    PAPER_1,
    rotary="rope",
)
