"""The figures of a conversion: records, as in `evaluation.json`, and tables of them on the screen."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rich.table import Table

from maclaurin.common.records import ABSENT, Record
from maclaurin.common.sizes import size_text
from maclaurin.training.conversion import Plan

FIGURES = "evaluation.json"
UNTRAINED = "untrained"
RECOVER = "recover"
STAGES = (UNTRAINED, "transfer", RECOVER)


@dataclass(frozen=True)
class LayerAgreement(Record):
    """Of one layer's attention with the source's (`evaluate.py`); kl: None where the source has no softmax."""

    layer: int
    error: float
    kl: float | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class Agreement(Record):
    """Of a converted model with its source, on `rows` validation sentences, images or tokens.

    seconds, cpu_seconds: wall and CPU time of the stage before it; None before training.
    """

    rows: int
    layers: Sequence[LayerAgreement]
    seconds: float | None = field(default=None, metadata=ABSENT)
    cpu_seconds: float | None = field(default=None, metadata=ABSENT)

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        if cls is Agreement:  # JSON does not name the class, but only vectors have cosines
            kind: Any = VectorAgreement if isinstance(values, dict) and "cosine" in values else TokenAgreement
            found: Self = kind.from_json(values, where)
            return found
        return super().from_json(values, where)


@dataclass(frozen=True, kw_only=True)
class VectorAgreement(Agreement):
    """Of encoders and vision models."""

    cosine: float
    lowest_tenth: float
    spearman: float
    same_class: float | None = field(default=None, metadata=ABSENT)

    def __str__(self) -> str:
        return f"cosine {self.cosine:.4f}, Spearman {self.spearman:.4f}"


@dataclass(frozen=True, kw_only=True)
class TokenAgreement(Agreement):
    """Of decoders: loss in nats per token of the source (teacher_loss) and of the converted model."""

    teacher_loss: float
    loss: float
    kl: float
    same_token: float

    def __str__(self) -> str:
        return f"loss {self.loss:.4f} (source {self.teacher_loss:.4f}), same token {self.same_token:.1%}"

    def gap_closed(self, untrained: Agreement) -> float:
        """The fraction of the loss gap between the untrained conversion and the source that was closed."""
        if not isinstance(untrained, TokenAgreement):
            raise ValueError("stages must all have losses, or none")
        gap = untrained.loss - untrained.teacher_loss
        return (untrained.loss - self.loss) / gap if gap > 0 else 1.0


@dataclass(frozen=True)
class Cost(Record):
    """Forward of one sequence: milliseconds, speedup, and peak bytes beyond the model.

    quartiles: of the times, around the medians. load: of the machine meanwhile. Both are absent from older files.
    """

    length: int
    ratio: float
    source_ms: float
    source_bytes: int
    converted_ms: float
    converted_bytes: int
    source_quartiles: tuple[float, float] | None = field(default=None, metadata=ABSENT)
    converted_quartiles: tuple[float, float] | None = field(default=None, metadata=ABSENT)
    load: float | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class Figures(Record):
    """kind: of the source. stages: by name, in their order, those done so far.

    curve: of a decoder, after some numbers of steps of recovery, before its last.
    """

    plan: Plan
    kind: str
    stages: Mapping[str, Agreement] = field(default_factory=dict)
    cost: Sequence[Cost] | None = field(default=None, metadata=ABSENT)
    curve: Mapping[str, TokenAgreement] | None = field(default=None, metadata=ABSENT)

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        made = super().from_json(values, where)
        if UNTRAINED not in made.stages or not set(made.stages) <= set(STAGES):
            raise ValueError(f"stages must be some of {', '.join(STAGES)}, the first among them, got {[*made.stages]!r:.60}")
        if len({(type(stage), len(stage.layers)) for stage in made.stages.values()}) > 1:
            raise ValueError("stages must all have the same figures and as many layers")
        return made

    def with_stage(self, name: str, found: Agreement) -> Figures:
        return replace(self, stages={**self.stages, name: found})

    def with_point(self, step: int, found: TokenAgreement) -> Figures:
        return replace(self, curve={**(self.curve or {}), str(step): found})

    def in_order(self) -> Iterator[tuple[str, Agreement]]:
        """The stages, and before the end of recovery what its curve has."""
        yield from ((name, stage) for name, stage in self.stages.items() if name != RECOVER)
        yield from ((f"{RECOVER}, {step} steps", point) for step, point in (self.curve or {}).items())
        if RECOVER in self.stages:
            yield RECOVER, self.stages[RECOVER]

    @property
    def untrained(self) -> Agreement:
        return self.stages[UNTRAINED]


def result_table(results: Sequence[Figures]) -> Table:
    """A row per student and stage."""
    table = Table(title=f"{results[0].plan.source}: source and converted model on validation data")
    for column in ("student", "after"):
        table.add_column(column)
    vectors = isinstance(results[0].untrained, VectorAgreement)
    columns = ("cosine", "lowest tenth", "Spearman") if vectors else ("loss", "source's loss", "gap closed", "same token")
    for column in (*columns, "attention error", "attention KL", "seconds", "of all cores"):
        table.add_column(column, justify="right")
    for result in results:
        for name, stage in result.in_order():
            table.add_row(result.plan.title, name, *_cells(stage, result.untrained))
    return table


def cost_table(results: Sequence[Figures]) -> Table | None:
    """Speed and memory by length, where they were measured."""
    table = Table(title="one forward of one sequence, random weights, as many positions as needed")
    table.add_column("student")
    for column in ("length", "source", "converted", "times faster", "source's peak memory", "converted"):
        table.add_column(column, justify="right")
    for result in results:
        for row in result.cost or ():
            times = [f"{ms:.0f} ms" for ms in (row.source_ms, row.converted_ms)]
            sizes = [size_text(nbytes) for nbytes in (row.source_bytes, row.converted_bytes)]
            table.add_row(result.plan.title, f"{row.length:,}", *times, f"{row.ratio:.2f}", *sizes)
    return table if table.row_count else None


def _cells(stage: Agreement, untrained: Agreement) -> list[str]:
    cells = []
    if isinstance(stage, VectorAgreement):
        cells = [f"{value:.4f}" for value in (stage.cosine, stage.lowest_tenth, stage.spearman)]
    elif isinstance(stage, TokenAgreement):
        cells = [f"{stage.loss:.4f}", f"{stage.teacher_loss:.4f}"]
        cells += [f"{stage.gap_closed(untrained):.0%}", f"{stage.same_token:.1%}"]
    for values in ([row.error for row in stage.layers], [row.kl for row in stage.layers if row.kl is not None]):
        cells.append(f"{statistics.fmean(values):.4f}" if values else "")
    return cells + ["" if seconds is None else f"{seconds:.0f}" for seconds in (stage.seconds, stage.cpu_seconds)]
