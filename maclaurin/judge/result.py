"""What was found out about models: records, as in `judgement.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maclaurin.common.files import naming, read_json, write_json
from maclaurin.common.records import ABSENT, Record

FILE = "judgement.json"


@dataclass(frozen=True)
class OnText(Record):
    """perplexity: per token. same_token: how often the likeliest next token is the teacher's. kl: KL(teacher ‖ model)."""

    tokens: int
    perplexity: float
    same_token: float
    kl: float


@dataclass(frozen=True)
class Recall(Record):
    """Pass keys found in prompts of so many tokens at most."""

    tokens: int
    right: int
    prompts: int


@dataclass(frozen=True)
class Decoding(Record):
    """One new token after `context` others: milliseconds, their quartiles, and bytes of the state or the cache."""

    context: int
    milliseconds: float
    quartiles: tuple[float, float]
    state_bytes: int


@dataclass(frozen=True)
class Task(Record):
    """Of the lm-evaluation-harness: a metric's value and its standard error."""

    name: str
    metric: str
    value: float
    error: float | None = None


@dataclass(frozen=True)
class Judged(Record):
    """One model; parts that have not been judged yet are absent."""

    folder: str
    text: OnText | None = field(default=None, metadata=ABSENT)
    answers: Sequence[str] | None = field(default=None, metadata=ABSENT)
    recall: Sequence[Recall] | None = field(default=None, metadata=ABSENT)
    decoding: Sequence[Decoding] | None = field(default=None, metadata=ABSENT)
    task: Task | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class Judgement(Record):
    """models: by name, the teacher first. settings: what the figures depend on; others are never mixed with them."""

    settings: Mapping[str, str]
    questions: Sequence[str]
    models: Mapping[str, Judged]

    @property
    def teacher(self) -> Judged:
        return next(iter(self.models.values()))

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, self.to_json())

    @classmethod
    def load(cls, folder: Path) -> Judgement:
        with naming(folder / FILE):
            return cls.from_json(read_json(folder / FILE))
