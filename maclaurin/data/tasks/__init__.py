"""Tasks that show what a mechanism can do: recall, copying, tracking, needles, lists, images, text, regression.

    batch = task("mqar", length=256, pairs=16).sample(32, seed=0)    # .tokens, .targets: (32, 256)

Targets are -100 where no answer is asked for.
"""

from maclaurin.data.tasks.base import NOT_ASKED, Batch, Labelled, StoredTask, Task, mixture
from maclaurin.data.tasks.copying import Copying, SelectiveCopying
from maclaurin.data.tasks.listops import ListOps
from maclaurin.data.tasks.mad import Compression, FuzzyRecall, InContextRecall, Memorisation
from maclaurin.data.tasks.needle import NeedleTask, Prompt, Ruler
from maclaurin.data.tasks.passkey import Passkey
from maclaurin.data.tasks.pathfinder import Pathfinder, PathX
from maclaurin.data.tasks.recall import MQAR, MQAR_GRID, MQAR_HELD_OUT, MQAR_MIXTURE, InductionHeads
from maclaurin.data.tasks.registry import available_tasks, register, task, task_entry
from maclaurin.data.tasks.regression import Regression
from maclaurin.data.tasks.score import accuracy, exact_match
from maclaurin.data.tasks.stored import AAN, CIFAR10, IMDB, Digits
from maclaurin.data.tasks.text import Text
from maclaurin.data.tasks.tracking import StateTracking

__all__ = [
    "AAN",
    "CIFAR10",
    "IMDB",
    "MQAR",
    "MQAR_GRID",
    "MQAR_HELD_OUT",
    "MQAR_MIXTURE",
    "NOT_ASKED",
    "Batch",
    "Compression",
    "Copying",
    "Digits",
    "FuzzyRecall",
    "InContextRecall",
    "InductionHeads",
    "Labelled",
    "ListOps",
    "Memorisation",
    "NeedleTask",
    "Passkey",
    "PathX",
    "Pathfinder",
    "Prompt",
    "Regression",
    "Ruler",
    "SelectiveCopying",
    "StateTracking",
    "StoredTask",
    "Task",
    "Text",
    "accuracy",
    "available_tasks",
    "exact_match",
    "mixture",
    "register",
    "task",
    "task_entry",
]
