"""A table or figure of a paper: its rows, the published numbers, and how it is made again at three budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maclaurin.evals.cells import Row
from maclaurin.evals.experiment import Experiment
from maclaurin.training.recipe import Recipe, for_all

BUDGETS = ("minutes", "day", "paper")


@dataclass(frozen=True, kw_only=True)
class Table:
    """where: its place in the paper. shows: what it shows, in a line.

    experiments: by budget, small models on a task. lab: by budget, an experiment of the lab and its options. recipe, rows:
    of the budget "paper", the fields that all language models of the table share, and the layer of each. A budget that
    has none of these cannot be had, and `only` says why.

    published: by row, the number of the paper, or its place where the paper has words alone (`in_words`). controls: rows
    that the paper lacks. asks: pairs of rows whose difference is the point of the table. missing: rows of the paper that
    cannot be had, and why. note: what a reader must know.
    """

    name: str
    where: str
    shows: str
    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    lab: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    in_words: bool = False
    asks: tuple[tuple[str, str], ...] = ()
    controls: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    only: str = ""
    note: str = ""

    def budgets(self) -> list[str]:
        """Those that it can be made at."""
        known = {*self.experiments, *self.lab, *(["paper"] if self.recipe else [])}
        return [budget for budget in BUDGETS if budget in known]

    def labels(self) -> list[str]:
        """Its rows, whatever the budget; none of an experiment of the lab."""
        found = [label for experiment in self.experiments.values() for label in experiment.rows]
        return list(dict.fromkeys([*self.rows, *found]))

    def text_of(self, label: str) -> str:
        """What the paper says of a row: a number, a place, or that it has none."""
        if label in self.controls:
            return "a control"
        if label not in self.published:
            return ""
        number = self.published[label]
        return f"place {number + 1:.0f}" if self.in_words else f"{number:.3f}"

    def recipes(self, output: str) -> dict[str, Recipe]:
        """Of the budget "paper", one language model per row, each with a folder of its own."""
        return {label: self._recipe(label, row, output) for label, row in self.rows.items()}

    def _recipe(self, label: str, row: Row, output: str) -> Recipe:
        (mixer,) = row.mixers
        options = json.dumps(for_all(mixer, dict(row.options.get(mixer, {}))))
        folder = "".join(letter if letter.isalnum() or letter in "+-_." else "-" for letter in label)
        return Recipe(output=f"{output}/{folder}", mixer=mixer, mixer_options=options, **self.recipe)


@dataclass(frozen=True)
class Paper:
    """tables: by their names, in the order of the paper."""

    title: str
    tables: Mapping[str, Table]

    @classmethod
    def of(cls, title: str, *tables: Table) -> Paper:
        return cls(title, {table.name: table for table in tables})
