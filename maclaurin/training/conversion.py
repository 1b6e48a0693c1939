"""All settings of a conversion: one dataclass, the flags of `maclaurin convert`, stored with the result to resume from.

The defaults of `Plan` are those of encoders; convert/defaults.py has those of other sources. Like a recipe it needs no
library, and it is here because importing `maclaurin.convert` registers models, which takes seconds.
"""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.common.files import naming, read_json, write_json
from maclaurin.common.records import Record

FILE = "conversion.json"
LOSSES = ("distill", "task")
PRECISIONS = ("fp32", "bf16")
LONGEST = 2048  # tokens of a decoder's sequences: what it may look back beyond its window
DECODER: dict[str, Any] = {
    "window": 64,
    "one_sum": True,
    "max_length": LONGEST,
    "batch_size": 1,
    "transfer_steps": 12,
    "transfer_rows": 12,
    "transfer_rate": 1e-2,
    "recover_steps": 16,
    "recover_rate": 1e-3,
    "lora": 16,
    "eval_rows": 2,
}
OWN = {
    "max_length": 256,
    "batch_size": 8,
    "eval_rows": 128,
    "train_projections": True,
    "map_rate": 10.0,
    "loss": "task",
}
AS_TRAINED = "own models as they were trained"
STUDENTS = ("taylor", "2mamba", "luna", "hedgehog", "performer", "relu", "elu")
SOFTMAX = "softmax"
AUTO = "auto"


def _flag(default: Any, text: str, others: str = "") -> Any:
    """others: the defaults of sources that are not encoders."""
    shown = [str(default)] * (default not in (None, "")) + [others] * bool(others)
    return field(default=default, metadata={"help": f"{text} (default: {'; '.join(shown)})" if shown else text})


@dataclass(frozen=True)
class Plan(Record):
    source: str = _flag("", "Folder of a trained softmax model, or its name on the hub; also without the flag's name.")
    output: str = _flag("", "Folder of the converted model, its stages and its figures.")
    student: str = _flag("2mamba", f"Of all layers: {', '.join(STUDENTS)}; several, separated by commas, are compared.")
    layers: str = _flag("", "Instead, one student per layer, separated by commas; sliding-window and softmax too.")
    keep_softmax: str = _flag(
        "", "Layers that keep their attention, such as 0,5; auto:4 for the four that cost most when replaced (decoders)."
    )
    num_features: int | None = _flag(None, "Features of a student with a feature map; second order's if not given.")
    window: int | None = _flag(None, "Softmax over this many last tokens beside the student (decoders).")
    one_sum: bool = _flag(
        False,
        "Of the weights in the window and before it; otherwise a sum of each, and a gate.",
        f"decoders of transformers {DECODER['one_sum']}",
    )
    corpus: str = _flag("stdlib", "Text as for `maclaurin train`; for a vision model a folder of images.", AS_TRAINED)
    text_field: str = _flag("text", "Field of the text in .jsonl and .parquet.", AS_TRAINED)
    max_length: int = _flag(64, "Tokens per sentence or sequence.", f"decoders {DECODER['max_length']}, {AS_TRAINED}")
    batch_size: int = _flag(32, "Sentences, sequences, images per step.", f"decoders {DECODER['batch_size']}, {AS_TRAINED}")
    accumulate: int = _flag(1, "Parts in which a step's sequences are computed, to save memory (decoders).")
    transfer_steps: int = _flag(100, "Steps of attention transfer; 0 for none.", "own models a tenth of their training")
    transfer_rows: int = _flag(
        0, "Sequences whose states transfer of a decoder keeps on disk and reads again; 0 for as many as its steps see."
    )
    transfer_rate: float = _flag(3e-3, "Its largest learning rate; it falls to 0.", "own models ten times theirs")
    train_projections: bool = _flag(
        False, "Transfer trains the query and key projections too.", f"own models {OWN['train_projections']}"
    )
    recover_steps: int = _flag(500, "Steps of recovery; 0 for none.", "own models a tenth of their training")
    recover_rate: float = _flag(1e-4, "Its largest learning rate.", "own models a third of theirs")
    map_rate: float = _flag(
        3.0,
        "Learning rate of new parameters, a multiple of that of the source's.",
        f"own models {OWN['map_rate']:g}",
    )
    loss: str = _flag(
        "distill", "Of recovery: distill (the source's outputs), or task (the next token).", f"own models {OWN['loss']}"
    )
    lora: int = _flag(0, "Rank of low-rank updates in recovery; 0 to train all weights.", f"decoders {DECODER['lora']}")
    precision: str = _flag(
        "fp32", "Of products in recovery of a decoder: fp32 or bf16.", "decoders bf16 on processors made for it"
    )
    eval_rows: int = _flag(1000, "Validation sentences, sequences or images.", f"decoders {DECODER['eval_rows']}")
    save_every: int = _flag(0, "Steps between checkpoints; 0 for a quarter of a stage.")
    seed: int = _flag(0, "Seed of new parameters and of the order of the data.")

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("give a source to convert: a folder, or a name of the hub")
        if not self.output:
            raise ValueError("give an output, the folder of the converted model")
        for name in (*comma_list(self.student), *comma_list(self.layers)):
            one_of("student", name, (*STUDENTS, "sliding-window", SOFTMAX))
        if self.layers and len(comma_list(self.student)) > 1:
            raise ValueError(f"layers names the students itself: give one student beside it at most, got {self.student!r}")
        if not self.kept_by_cost:
            whole_numbers("keep_softmax", self.keep_softmax)
        one_of("loss", self.loss, LOSSES)
        one_of("precision", self.precision, PRECISIONS)
        for name in ("max_length", "batch_size", "eval_rows", "num_features", "window", "accumulate"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        for name in ("transfer_steps", "transfer_rows", "recover_steps", "lora", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("transfer_rate", "recover_rate", "map_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate must divide the batch_size {self.batch_size}, got {self.accumulate}")

    def each(self) -> list[Plan]:
        """One plan per student at the same budget, each with a folder of its own."""
        names = comma_list(self.student)
        if len(names) == 1:
            return [self]
        return [dataclasses.replace(self, student=name, output=str(Path(self.output) / name)) for name in names]

    @property
    def kept_by_cost(self) -> int:
        """How many layers keep their attention because they cost most when replaced; 0 where they are named, or none do."""
        prefix, _, count = self.keep_softmax.partition(":")
        if prefix.strip() != AUTO:
            return 0
        if not count.strip().isdecimal() or int(count) < 1:
            raise ValueError(f"keep_softmax must name layers, or auto:N with a number N above 0, got {self.keep_softmax!r}")
        return int(count)

    def students(self, num_layers: int) -> list[str]:
        """The student of every layer; with auto:N before any of them is known to keep its attention."""
        names = comma_list(self.layers) or [self.student] * num_layers
        if len(names) != num_layers:
            raise ValueError(f"layers must name one student for each of the {num_layers} layers, got {len(names)}")
        if self.kept_by_cost >= num_layers:
            raise ValueError(f"keep_softmax must leave some of the {num_layers} layers, got {self.keep_softmax!r}")
        for layer in [] if self.kept_by_cost else whole_numbers("keep_softmax", self.keep_softmax):
            if not 0 <= layer < num_layers:
                raise ValueError(f"keep_softmax must name layers 0 to {num_layers - 1}, got {layer}")
            names[layer] = SOFTMAX
        if set(names) == {SOFTMAX}:
            raise ValueError("every layer keeps its softmax attention: there is nothing to convert")
        return names

    def options(self) -> dict[str, Any]:
        one_sum = True if self.window and self.one_sum else None
        given = {"num_features": self.num_features, "window": self.window, "one_sum": one_sum}
        return {name: value for name, value in given.items() if value is not None}

    def save(self) -> None:
        """Written once. A folder with another conversion is refused, so that stages never mix."""
        file = Path(self.output) / FILE
        mine = self.to_json()
        if file.exists():
            stored = Plan.load(Path(self.output)).to_json()
            for name, value in mine.items():
                if name != "output" and stored[name] != value:
                    raise ValueError(
                        f"{self.output} holds a conversion with {name} {stored[name]!r:.80}, not {value!r}: "
                        "give another output"
                    )
            return
        write_json(file, mine)

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """The plan with which the conversion began, perhaps in another folder."""
        with naming(folder / FILE):
            return cls.from_json(read_json(folder / FILE))

    @property
    def title(self) -> str:
        """The students of the layers."""
        return (self.layers or self.student) + (f", softmax in {self.keep_softmax}" if self.keep_softmax else "")

    def command(self) -> str:
        """In the shell: what is not the default."""
        words = ["maclaurin", "convert", self.source]
        for own in dataclasses.fields(self):
            value = getattr(self, own.name)
            if own.name != "source" and value != own.default:
                words += [f"--{own.name.replace('_', '-')}", str(value)]
        return shlex.join(words)


def comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in comma_list(text)]
    except ValueError:
        raise ValueError(f"{name} must be whole numbers separated by commas, got {text!r}") from None
