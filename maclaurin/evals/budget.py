"""An equal budget: MLPs as wide as it takes for every row to have the parameters of one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from maclaurin.data.tasks import Task
from maclaurin.evals.cells import Row, Setting
from maclaurin.evals.models import build
from maclaurin.training.model_size import matched_width


def parameters(row: Row, setting: Setting, task: Task[Any]) -> int:
    """Of the whole model, built without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(row, setting, task).parameters())


def matched(row: Row, setting: Setting, task: Task[Any], reference: Row) -> Setting:
    """With MLPs of the width that brings the row nearest to the parameters of `reference` in the given setting.

    A row whose mixers alone have more keeps MLPs of width 1: the table shows that it is larger.
    """
    own = parameters(row, setting, task)
    one_wider = parameters(row, replace(setting, inner=setting.inner + 1), task) - own
    width = matched_width(setting.inner, own - parameters(reference, setting, task), one_wider)
    return replace(setting, inner=max(width, 1))
