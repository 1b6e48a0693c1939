"""An experiment: a table with a row per model and a column per test, and one budget for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maclaurin.evals.budget import matched
from maclaurin.evals.cells import Cell, Problem, Row, Setting

SOFTMAX = Row(("softmax",))


@dataclass(frozen=True)
class Experiment:
    """rows: the models, by label. train, test, validate: the tasks of every `Cell`. axis, across: the options of the tests
    that accuracy is plotted against, on one axis or on two (a heat map).

    reference: the model whose number of parameters all models have, as nearly as the width of their MLPs allows; it need
    not be in the table; None for the MLPs of the setting everywhere. metric: "accuracy", "exact" for the share of examples
    without a mistake, or "loss", nats per answer, which is better when lower and then chooses learning rates too.
    families: by label, the mechanism, where a table has each in several sizes; it is drawn against bytes of state.
    chosen: by label, the one learning rate of a model that was tuned before. against: by label, the model that it is
    compared with seed by seed, on the last test. published: by label, the text of the table's last column; `source` says
    where it was published, and in which setting. note: what a reader of the table must know.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    setting: Setting
    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    learning_rates: tuple[float, ...]
    validate: tuple[Problem, ...] = ()
    axis: str = ""
    across: str = ""
    reference: Row | None = SOFTMAX
    metric: str = "accuracy"
    seeds: int = 1
    families: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, float] = field(default_factory=dict)
    against: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    note: str = ""

    def settings(self) -> dict[str, Setting]:
        """The budget of each model."""
        if self.reference is None:
            return dict.fromkeys(self.rows, self.setting)
        task = self.train[0].task()
        return {label: matched(row, self.setting, task, self.reference) for label, row in self.rows.items()}

    def cells(self, seeds: int) -> list[Cell]:
        """Seed by seed, so that partial results compare all models."""
        settings = self.settings()
        return [
            Cell(self.name, label, row, settings[label], self.train, self.test, learning_rate, seed, self.validate)
            for seed in range(seeds)
            for learning_rate in self.learning_rates
            for label, row in self.rows.items()
            if learning_rate == self.chosen.get(label, learning_rate)
        ]
