"""An equal budget: MLP widths that give all models of a table the parameters of a reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from maclaurin.data.tasks import Task
from maclaurin.evals.cells import Row, Setting
from maclaurin.evals.models import build
from maclaurin.training.model_size import matched_width


def parameters(row: Row, setting: Setting, task: Task[Any]) -> int:
    """Of the whole model, counted on the meta device."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(row, setting, task).parameters())


def matched(row: Row, setting: Setting, task: Task[Any], reference: Row) -> Setting:
    """The setting with the MLP width that brings the model closest to the parameters of `reference` in that setting.

    A model whose mixers alone have more parameters gets MLPs of width 1: the table shows that it is larger.
    """
    own = parameters(row, setting, task)
    one_wider = parameters(row, replace(setting, inner=setting.inner + 1), task) - own
    width = matched_width(setting.inner, own - parameters(reference, setting, task), one_wider)
    return replace(setting, inner=max(width, 1))
