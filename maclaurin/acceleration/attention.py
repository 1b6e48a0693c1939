"""The softmax layers of a linear model of transformers, where PyTorch's own attention has no AVX-512.

PyTorch multiplies inside its attention as it does outside: by MKL, which takes AVX2 on processors that are not Intel's. The
kernel of this package takes AVX-512, and is two to three times as fast there. Elsewhere, and for what is not plain causal
attention of float32, transformers' function stays.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin import ops
from maclaurin.acceleration.architectures import ARCHITECTURES, architecture_of
from maclaurin.ops.backends import reason_for_torch
from maclaurin.ops.products import mkl_falls_back

OTHERWISE = ("position_bias", "cache", "softcap", "s_aux")  # arguments with which attention is another


def causal_softmax(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """In place of transformers' `sdpa`, for all layers that look it up in its registry of attention functions."""

    @functools.wraps(theirs)
    def either(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        whole = attention_mask is None and query.shape[2] == key.shape[2] > 1
        if not whole or args or not _is_plain(module, kwargs) or not _is_faster(query, key, value):
            found: tuple[Tensor, Tensor | None] = theirs(module, query, key, value, attention_mask, *args, **kwargs)
            return found
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        y_BTHV, _ = ops.softmax_attention(q, k, v, scale=kwargs.get("scaling"), backend="native", return_state=False)
        return y_BTHV, None

    return either


def _is_plain(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Causal, of a model that has kernels here, and nothing beside it."""
    causal = arguments.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        return False
    if arguments.get("dropout") or any(arguments.get(name) is not None for name in OTHERWISE):
        return False
    return architecture_of(type(module).__module__) in ARCHITECTURES


def _is_faster(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or not mkl_falls_back():
        return False
    if not all(type(x) is Tensor and x.is_cpu and x.dtype == torch.float32 for x in tensors):
        return False
    return reason_for_torch("auto", tensors[0], torch.float32) is None
