"""The results of a suite, as in `results.json`: tables with a row per model and a point per test, and all settings."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from maclaurin.common.intervals import wilson
from maclaurin.common.pareto import pareto
from maclaurin.common.records import ABSENT, Json, Record
from maclaurin.evals.cells import Problem, Setting


@dataclass(frozen=True)
class Bucket(Record):
    """Answers whose keys occurred `start` to `stop` - 1 tokens ago."""

    start: int = field(metadata={"key": "from"})
    stop: int = field(metadata={"key": "to"})
    accuracy: float
    answers: int


@dataclass(frozen=True, kw_only=True)
class Asked(Record):
    """A task with its options, which in JSON are on the same level as the other fields."""

    task: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, problem: Problem, **found: Any) -> Self:
        return cls(task=problem.name, options=problem.options, **found)

    def to_json(self) -> Json:
        values = super().to_json()
        return {"task": values.pop("task"), **values.pop("options"), **values}

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        if isinstance(values, dict):
            known = {own.name for own in dataclasses.fields(cls)}
            values = {**values, "options": {name: value for name, value in values.items() if name not in known}}
        return super().from_json(values, where)


@dataclass(frozen=True, kw_only=True)
class Point(Asked):
    """A model on one test. value: the mean over seeds of the table's metric, with its 95 % interval.

    tokens: the length of the test. state_bytes: the state of the model for one such sequence, None if it has none.
    """

    value: float
    low: float
    high: float
    by_seed: Sequence[float]
    accuracy: float | None = field(default=None, metadata=ABSENT)
    exact: float | None = field(default=None, metadata=ABSENT)
    loss: float | None = field(default=None, metadata=ABSENT)
    examples: int
    tokens: int
    state_bytes: int | None
    by_distance: Sequence[Bucket]


@dataclass(frozen=True)
class Tried(Record):
    """A learning rate and its mean validation over seeds: the accuracy, or the loss where the table's metric is the loss."""

    learning_rate: float
    accuracy: float | None = field(default=None, metadata=ABSENT)
    loss: float | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        if (self.accuracy is None) == (self.loss is None):
            raise ValueError("validation must have an accuracy or a loss")

    @property
    def value(self) -> float:
        found = self.accuracy if self.loss is None else self.loss
        assert found is not None
        return found


@dataclass(frozen=True)
class Against(Record):
    """How much higher a model is on the last test than another with the same seed: mean, lowest and highest over seeds."""

    row: str
    difference: float
    lowest: float
    highest: float
    seeds_above: int


@dataclass(frozen=True, kw_only=True)
class ResultRow(Record):
    """validation: of the learning rates tried so far. seeds, points, steps, seconds: with the best one of them.

    A row without points is unfinished, or failed; `errors` says how. A saved model, trained elsewhere, has one seed and
    neither learning rates nor steps. family: the mechanism, where a table has it in several sizes. verdict: of a search,
    whether the model goes on to the next rung, and why not. curve: the loss of training by step, mean over seeds.
    """

    label: str
    mixers: Sequence[str]
    options: Mapping[str, Mapping[str, Any]]
    validation: Sequence[Tried] = ()
    published: str = ""
    errors: Sequence[str] = ()
    unfinished: int = 0
    learning_rate: float | None
    seeds: int
    points: Sequence[Point]
    parameters: int | None = field(default=None, metadata=ABSENT)
    inner: int | None = field(default=None, metadata=ABSENT)  # the width of its MLPs
    steps: Sequence[int] = ()
    diverged: int = 0
    seconds: float | None = field(default=None, metadata=ABSENT)
    against: Against | None
    family: str = ""
    verdict: str = ""
    curve: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, kw_only=True)
class ResultTable(Record):
    """The table of an experiment. setting: the budget; None for a saved model, trained elsewhere.

    core_seconds: of all finished cells, not only those of the chosen learning rates. rung: of a search, from 1.
    """

    experiment: str
    title: str
    axis: str
    across: str
    metric: str
    setting: Setting | None
    learning_rates: Sequence[float]
    seeds: int
    train: Sequence[Asked]
    validate: Sequence[Asked] = ()
    source: str
    note: str = ""
    cells: int = 0
    core_seconds: float = 0.0
    rung: int | None = field(default=None, metadata=ABSENT)
    rows: Sequence[ResultRow]

    def to_json(self) -> Json:
        values = super().to_json()
        return values | {"setting": values["setting"] or {}}

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        if isinstance(values, dict) and values.get("setting") == {}:
            values = {**values, "setting": None}
        return super().from_json(values, where)

    @property
    def lower_is_better(self) -> bool:
        return self.metric == "loss"

    @property
    def metric_title(self) -> str:
        return {"exact": "examples without a mistake", "loss": "loss, nats per byte"}.get(self.metric, self.metric)

    def measured(self) -> list[ResultRow]:
        """The rows that have points."""
        return [row for row in self.rows if row.points]

    @property
    def by_state(self) -> bool:
        """Whether it is about bytes of state: rows are sizes of a few families."""
        return any(row.family for row in self.rows)

    def ordered(self) -> list[ResultRow]:
        """All rows as a reader sees them: where the table is about bytes of state, by these, the unmeasured ones last."""
        if not self.by_state:
            return list(self.rows)
        return sorted(self.rows, key=lambda row: row.points[-1].state_bytes or 0 if row.points else math.inf)

    def frontier(self, place: int = -1) -> list[str]:
        """The labels, by bytes, of the rows that no other is beyond in the test at this place."""
        rows = [row for row in self.measured() if len(row.points) > place and row.points[place].state_bytes is not None]
        points = [(float(row.points[place].state_bytes or 0), row.points[place].value) for row in rows]
        return [rows[found].label for found in pareto(points, lower=self.lower_is_better)]

    def columns(self) -> list[Any]:
        """The values of the axis, in the order of the tests; one None where there is no axis."""
        points = next((row.points for row in self.measured()), ())
        return list(dict.fromkeys(point.options.get(self.axis) for point in points))

    def at(self, row: ResultRow, value: Any) -> list[Point]:
        """The points of a row at a value of the axis: one, or one per value across it."""
        return [point for point in row.points if point.options.get(self.axis) == value]

    def interval(self, row: ResultRow, value: Any) -> tuple[float, float]:
        """The 95 % interval there: that of the point, or Wilson's over the examples of all points."""
        points = self.at(row, value)
        if len(points) == 1:
            return points[0].low, points[0].high
        examples = sum(point.examples * len(point.by_seed) for point in points)
        if self.metric == "loss":
            return min(point.low for point in points), max(point.high for point in points)
        return wilson(statistics.fmean(point.value for point in points), examples)

    def chance(self, value: Any) -> float | None:
        """The accuracy of guessing there; None of a task that is not known here, and for a loss."""
        first = next((point for row in self.measured() for point in self.at(row, value)), None)
        if first is None or self.metric == "loss":
            return None
        if self.metric == "exact":  # all answers of an example
            return 0.0
        try:
            return Problem(first.task, first.options).task().chance
        except (TypeError, ValueError):
            return None

    def at_chance(self, row: ResultRow, value: Any) -> bool:
        """Whether guessing would do as well, as far as the interval tells."""
        chance = self.chance(value)
        return chance is not None and self.interval(row, value)[0] <= chance


@dataclass(frozen=True)
class SuiteResult(Record):
    command: str
    suite: str
    tables: Sequence[ResultTable]
