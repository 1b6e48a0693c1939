"""The inputs of every layer's attention in the source, computed once and then read from disk, whatever trains on them.

One file per layer holds them as float16: a norm stands before every attention, so they are small, and rounding them to 11
bits changes a layer's output by less than any student does. The files are mapped into memory, so that only rows in use are.
"""

# R rows (sequences), T time, D channels of the model

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.common.files import read_json, write_json
from maclaurin.convert.teacher_student import TracedTeacher

DONE = "states.json"  # which rows are complete, of which tokens
LARGEST = 65504.0  # of float16


@dataclass
class LayerInputs:
    """ids (R,T). arguments: what else the attention modules are called with, the same for every row."""

    folder: Path
    traced: TracedTeacher
    ids: Tensor
    arguments: list[dict[str, Any]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.ids.numel() * self._width * len(self._files) * 2

    def compute(self, at_once: int, note: Callable[[int], None]) -> None:
        """All rows that are not there yet; one that was cut off in the middle again. note: is told how many there are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = self._rows_done()
        self.trace(self.ids[:at_once])
        layers = [self._mapped(index, "r+" if done else "w+") for index in range(len(self._files))]
        while done < len(self.ids):
            rows = slice(done, done + at_once)
            for index, (layer, x) in enumerate(zip(layers, self.trace(self.ids[rows]), strict=True)):
                if not bool((x.abs() <= LARGEST).all()):
                    raise ValueError(f"layer {index} of the source has inputs beyond {LARGEST:g}, the range of float16")
                layer[rows] = x.cpu().numpy()
                layer.flush()
            done = min(done + at_once, len(self.ids))
            write_json(self.folder / DONE, self._of_these | {"rows": done})
            note(done)

    def read(self, layer: int, rows: list[int]) -> Tensor:
        """(rows,T,D) in float32."""
        return torch.from_numpy(self._mapped(layer, "r")[rows].astype(np.float32)).to(self.traced.model.device)

    def trace(self, ids: Tensor) -> list[Tensor]:
        """The inputs of all layers for some sequences."""
        calls = self.traced.run({"input_ids": ids.to(self.traced.model.device)})
        inputs = [call.args[0] if call.args else call.kwargs["hidden_states"] for call in calls]
        self.arguments = [{key: value for key, value in call.kwargs.items() if key != "hidden_states"} for call in calls]
        return inputs

    def _rows_done(self) -> int:
        try:
            known = read_json(self.folder / DONE)
        except (OSError, ValueError):
            return 0
        return int(known["rows"]) if known == self._of_these | {"rows": known.get("rows")} else 0

    @property
    def _of_these(self) -> dict[str, Any]:
        return {"tokens": hashlib.sha256(self.ids.numpy().tobytes()).hexdigest(), "shape": list(self._shape)}

    @property
    def _files(self) -> list[Path]:
        return [self.folder / f"layer-{index:02d}.f16" for index in range(self.traced.model.config.num_hidden_layers)]

    @property
    def _width(self) -> int:
        width: int = self.traced.model.config.hidden_size
        return width

    @property
    def _shape(self) -> tuple[int, int, int]:
        rows, length = self.ids.shape
        return rows, length, self._width

    def _mapped(self, layer: int, mode: Any) -> Any:
        return np.memmap(self._files[layer], dtype=np.float16, mode=mode, shape=self._shape)
