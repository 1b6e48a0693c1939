"""How well a task was done."""

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.data.tasks.base import NOT_ASKED


def accuracy(predictions: Tensor, targets: Tensor) -> float:
    """The share of right answers among those an example asks for, averaged over examples.

    predictions, targets: (N, T), or (N,) where an example asks for one answer; targets are -100 where none is asked for.
    """
    right, asked = _right_and_asked(predictions, targets)
    return (right.sum(1) / asked.sum(1)).mean().item()


def exact_match(predictions: Tensor, targets: Tensor) -> float:
    """The share of examples with every answer right. Shapes as for `accuracy`."""
    right, asked = _right_and_asked(predictions, targets)
    return (right == asked).all(1).double().mean().item()


def _right_and_asked(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.shape != targets.shape or targets.dim() not in (1, 2):
        raise ValueError(
            f"predictions and targets must both be (examples, time) or (examples,), "
            f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
        )
    if targets.dim() == 1:
        predictions, targets = predictions[:, None], targets[:, None]
    asked = targets != NOT_ASKED
    if not asked.any(1).all():
        raise ValueError(f"targets ask for nothing in {int((~asked.any(1)).sum())} of {len(targets)} examples")
    return ((predictions == targets) & asked).to(torch.float64), asked.to(torch.float64)
