"""An experiment: a table of rows of mixers and columns of tests, with one budget for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maclaurin.evals.cells import Cell, Problem, Row, Setting


@dataclass(frozen=True)
class Experiment:
    """axis, across: the options of the tests that accuracy is shown against, on one axis or on two (a heat map).

    metric: "accuracy", or "exact" for the share of examples without a mistake. published: by row, in the words of the
    table's last column; `source` says whose, and in which setting.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    setting: Setting
    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    learning_rates: tuple[float, ...]
    axis: str = ""
    across: str = ""
    metric: str = "accuracy"
    seeds: int = 1
    published: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def cells(self, seeds: int) -> list[Cell]:
        """Seed by seed, so that an early look compares all rows."""
        return [
            Cell(self.name, label, row, self.setting, self.train, self.test, learning_rate, seed)
            for seed in range(seeds)
            for learning_rate in self.learning_rates
            for label, row in self.rows.items()
        ]
