"""Which examples of a task are for training and which for validation.

A generated task has any number of them: another seed is another set. A stored one has its own validation split, or else
every fifth example of its training split is used for validation. A text has all three parts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from maclaurin.data.tasks import Labelled, StoredTask, Task, Text
from maclaurin.data.tasks.base import Store

KEPT_BACK = 5  # one in so many


def training_part(task: Task[Any]) -> Task[Any]:
    if not isinstance(task, StoredTask) or "validation" in task.splits:
        return task
    return Some(task, validation=False)


def validation_part(task: Task[Any]) -> Task[Any]:
    if isinstance(task, Text):
        return dataclasses.replace(task, split="validation")
    if not isinstance(task, StoredTask):
        return task
    if "validation" in task.splits:
        whole: Any = task
        return dataclasses.replace(whole, split="validation")
    return Some(task, validation=True)


@dataclass(frozen=True)
class Some(StoredTask):
    """Every fifth example of a stored task, or all others."""

    whole: StoredTask
    validation: bool

    def __post_init__(self) -> None:
        pass  # the whole has been checked

    @property
    def vocab_size(self) -> int:
        return self.whole.vocab_size

    @property
    def num_classes(self) -> int:
        return self.whole.num_classes

    def load(self) -> Store:
        is_kept_back = np.arange(len(self.whole)) % KEPT_BACK == KEPT_BACK - 1
        return View(self.whole.stored, np.flatnonzero(is_kept_back == self.validation))


@dataclass(frozen=True)
class View:
    store: Store
    chosen: np.ndarray[Any, np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Labelled:
        return self.store.take(self.chosen[chosen])
