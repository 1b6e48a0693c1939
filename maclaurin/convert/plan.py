"""What a conversion is: one dataclass, the flags of `maclaurin convert`, stored beside the result so that it can go on."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maclaurin.convert.students import NAMES, SOFTMAX
from maclaurin.ops.checks import at_least_one, one_of

FILE = "conversion.json"
LOSSES = ("distill", "task")


@dataclass(frozen=True)
class Plan:
    """source: folder or name of the hub. output: folder of the result, of its stages and of the figures.

    student: of all layers. layers: one name a layer in its place. keep_softmax: layers that keep their attention.
    num_features, window: as in `students.build_student`.
    corpus: text to train on; images for a vision model, a folder. max_length: tokens of a sentence or row at most.
    transfer_steps, recover_steps: of stages (a) and (b), 0 to leave one out. Rates are the largest of a linear schedule;
    map_rate multiplies the recover_rate for what the source did not have.
    train_projections: stage (a) also trains the projections to queries and keys.
    loss: of stage (b), "distill" (the teacher's outputs) or "task" (the next token). lora: rank, 0 to train all weights.
    eval_rows: held-out sentences or rows of stage (c).
    """

    source: str
    output: str
    student: str = "2mamba"
    layers: tuple[str, ...] = ()
    keep_softmax: tuple[int, ...] = ()
    num_features: int | None = None
    window: int | None = None
    corpus: str = "stdlib"
    text_field: str = "text"
    max_length: int = 64
    batch_size: int = 32
    transfer_steps: int = 100
    transfer_rate: float = 3e-3
    train_projections: bool = False
    recover_steps: int = 800
    recover_rate: float = 1e-4
    map_rate: float = 3.0
    loss: str = "distill"
    lora: int = 0
    eval_rows: int = 1000
    save_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (self.student, *self.layers):
            one_of("student", name, NAMES)
        one_of("loss", self.loss, LOSSES)
        for name in ("max_length", "batch_size", "eval_rows"):
            at_least_one(name, getattr(self, name))
        for name in ("transfer_steps", "recover_steps", "transfer_rate", "recover_rate", "map_rate", "lora", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def students(self, num_layers: int) -> list[str]:
        """The student of every layer."""
        names = list(self.layers or [self.student] * num_layers)
        if len(names) != num_layers:
            raise ValueError(f"layers must name one student for each of the {num_layers} layers, got {len(names)}")
        for layer in self.keep_softmax:
            if not 0 <= layer < num_layers:
                raise ValueError(f"keep_softmax must name layers 0 to {num_layers - 1}, got {layer}")
            names[layer] = SOFTMAX
        if set(names) == {SOFTMAX}:
            raise ValueError("every layer keeps its softmax attention: there is nothing to convert")
        return names

    def options(self) -> dict[str, Any]:
        given = {"num_features": self.num_features, "window": self.window}
        return {name: value for name, value in given.items() if value is not None}

    def save(self) -> None:
        """Written once. A folder that holds another conversion is refused, so that stages never mix."""
        file = Path(self.output) / FILE
        mine = json.loads(json.dumps(dataclasses.asdict(self)))
        if file.exists():
            stored = json.loads(file.read_text())
            for name, value in mine.items():
                if name != "output" and stored.get(name) != value:
                    raise ValueError(
                        f"{self.output} holds a conversion with {name} {stored.get(name)!r}, not {value!r}: "
                        "give another output"
                    )
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(mine, indent=2))
        temporary.replace(file)
