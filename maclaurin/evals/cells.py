"""A cell: one model trained once on one problem. All settings that decide its results, as plain data with a key."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.common.records import Json, Record
from maclaurin.data.tasks import Task, task
from maclaurin.data.tasks.text import Text, fingerprint_of

PROTOCOL = 2  # raised when `learn` changes what a cell's settings mean, so that older results are not taken for new ones
MODELS = ("language", "compressed", "classifier", "pairs", "vision")


@dataclass(frozen=True)
class Problem(Record):
    """A task by name, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def task(self) -> Task[Any]:
        return task(self.name, **self.options)


@dataclass(frozen=True)
class Row(Record):
    """A model of a table: the mixers of its layers, as a pattern that repeats, and the options of each mixer by name.

    short_window: SWAX's stochastic windows, in half of the steps but the last tenth. test_window: the window, in tests, of
    all layers that have one. heads: of this model, instead of those of the setting. bidirectional: every token sees all
    others, in models that give one answer per sequence. vision: fields of a vision model; where it has several stages, each
    has a mixer, an equal share of the layers, and twice the width and the heads of the one before.
    """

    mixers: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    short_window: int | None = None
    test_window: int | None = None
    heads: int | None = None
    bidirectional: bool = False
    vision: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting(Record):
    """The budget.

    model: "language" (an answer at some tokens), "compressed" (the same from the last vector alone), "classifier" (one per
    sequence), "pairs" (one per two sequences) or "vision" (one per image). width, heads, layers, inner: of the model; inner
    is the width of its MLPs, which differs from model to model where parameters are equal. steps of batch examples, AdamW;
    stop_at: the validation accuracy at which training ends early, None for never. examples: of each generated test; stored
    tests are used whole. embedding_std: of the initial token embeddings. label_smoothing: of the loss, the share of each
    answer that is spread over all classes.
    """

    model: str = "language"
    width: int = 64
    heads: int = 4
    layers: int = 2
    inner: int = 128
    steps: int = 1000
    batch: int = 32
    weight_decay: float = 0.1
    stop_at: float | None = None
    examples: int = 1000
    embedding_std: float = 0.02
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        one_of("model", self.model, MODELS)
        for name in ("width", "heads", "layers", "inner", "steps", "batch", "examples"):
            at_least_one(name, getattr(self, name))
        if not self.embedding_std > 0:
            raise ValueError(f"embedding_std must be above 0, got {self.embedding_std}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1, got {self.label_smoothing}")


@dataclass(frozen=True)
class Cell(Record):
    """train: tasks, of which every batch has one, at random. test: tasks that the model is scored on afterwards.

    validate: the validation tasks, () for those of training. With separate validation tasks, which are harder than those
    of training, a run ends with the weights that did best on them.
    """

    experiment: str
    label: str
    row: Row
    setting: Setting
    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    learning_rate: float
    seed: int
    validate: tuple[Problem, ...] = ()

    def settings(self) -> Json:
        """All that decides its results: not its label, nor its table."""
        values = dataclasses.asdict(self)
        del values["experiment"], values["label"]
        return values

    @property
    def key(self) -> str:
        """The same for the same settings and data, on any machine."""
        settings = self.settings()
        if corpora := {problem.options.get("corpus", Text.corpus) for problem in self.train if problem.name == "text"}:
            settings["corpora"] = sorted(map(fingerprint_of, corpora))  # under the same name there may be another text
        for later in ("embedding_std", "label_smoothing"):
            if getattr(self.setting, later) == getattr(Setting, later):
                del settings["setting"][later]  # results from before there was a choice stay valid
        if not self.validate:
            del settings["validate"]
        if self.row.heads is None:
            del settings["row"]["heads"]
        if not self.row.bidirectional:
            del settings["row"]["bidirectional"]
        if not self.row.vision:
            del settings["row"]["vision"]
        text = json.dumps({"protocol": PROTOCOL, **settings}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def name(self) -> str:
        return f"{self.experiment}, {self.label}, learning rate {self.learning_rate:g}, seed {self.seed}"
