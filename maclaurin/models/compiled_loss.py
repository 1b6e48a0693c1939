"""The summed cross entropy of a language model as one operator, with logits for some tokens at a time inside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maclaurin.ops.one_operator import one_operator


def summed_in_graph(head: nn.Module, rows: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Of the logits head(rows) (N, vocabulary) and targets (N,), in float32: what a compiler sees of the loop over chunks.

    The operator knows linear heads only. Of any other one, such as one with adapters, all logits are made at once.
    """
    if type(head) is not nn.Linear:
        return F.cross_entropy(head(rows).float(), targets, ignore_index=-100, reduction="sum")
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    bias = None if head.bias is None else head.bias.to(dtype)
    total: Tensor = _in_chunks(rows.to(dtype), head.weight.to(dtype), bias, targets, chunk)
    return total


@one_operator(
    "cross_entropy(Tensor rows, Tensor weight, Tensor? bias, Tensor targets, int chunk) -> Tensor",
    fake=lambda rows, *_: rows.new_empty((), dtype=torch.float32),
)
def _in_chunks(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int) -> Tensor:
    total = rows.new_zeros((), dtype=torch.float32)
    for some_rows, some_targets in zip(rows.split(chunk), targets.split(chunk), strict=True):
        total = total + checkpoint(_summed, some_rows, weight, bias, some_targets, use_reentrant=False)
    return total


def _summed(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(rows, weight, bias).float(), targets, ignore_index=-100, reduction="sum")
