"""Attention with squared or exponential scores as torch operators: forward, backward, shapes for the compiler."""

# B batch, T queries, S keys (the queries are the last T of them), H heads, G key-value heads, K, V channels

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops.native.library import Attention, Strided, run

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay"


def _rows(x: Tensor) -> Tensor:
    """Channels next to each other; any other strides are fine."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    B, T, H, K = q.shape
    return {"B": B, "T": T, "S": k.shape[1], "H": H, "G": k.shape[2], "K": K, "V": v.shape[3]}


@torch.library.custom_op(
    "maclaurin::quadratic",
    mutates_args=(),
    schema=f"({INPUTS}, float scale, bool exponential, bool normalize) -> (Tensor, Tensor)",
)
def quadratic(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, exponential: bool, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Every query against every earlier key: y (B,T,H,V), and the divisor of every row (B,T,H)."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    y, total = torch.empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    call = Attention(**_sizes(q, k, v), scale=scale, exponential=exponential, normalize=normalize)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("log_decay", log_decay), ("y", y), ("total", total)):
        setattr(call, name, Strided.of(tensor))
    run("quadratic_forward", call)
    return y, total


@quadratic.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, scale: float, exponential: bool, normalize: bool
) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
