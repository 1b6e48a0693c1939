"""Speed and memory of source and converted model against length: the same sizes, random weights, one forward.

Time depends on no weight, so positions beyond the source's table are no obstacle: the models measured are built with a larger
one. Each length and model has a process of its own for its memory; times are interleaved in one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from maclaurin.bench.memory import _peak, _resident
from maclaurin.bench.timing import interleaved
from maclaurin.convert.plan import Plan
from maclaurin.convert.sources import Source

SECONDS = 10.0  # a length


def cost_by_length(source: Source, plan: Plan, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row a length: milliseconds of a forward of one sequence, their ratio, and peak bytes beyond the model."""
    rows = []
    for length in lengths:
        models = {name: _model(folder, length) for name, folder in (("source", source.path), ("converted", Path(plan.output)))}
        ids = _ids(length, models["source"])
        times = interleaved({name: lambda model=model: _forward(model, ids) for name, model in models.items()}, seconds=SECONDS)
        row: dict[str, Any] = {"length": length, "ratio": times["source"].median / times["converted"].median}
        for name, folder in (("source", source.path), ("converted", Path(plan.output))):
            row[f"{name}_ms"] = times[name].median
            row[f"{name}_bytes"] = _child(folder, length)
        rows.append(row)
    return rows


def _model(folder: Path, length: int) -> PreTrainedModel:
    import transformers

    import maclaurin.convert.classes as classes
    from maclaurin.models import MaclaurinForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = max(config.max_position_embeddings, length)
    name = config.architectures[0]
    if name == MaclaurinForCausalLM.__name__:
        architecture: Any = MaclaurinForCausalLM
    elif hasattr(transformers, name):
        architecture = getattr(transformers, name)
        config._attn_implementation = "sdpa"
    else:
        architecture = classes.linear_class(getattr(transformers, name.removeprefix("Linear")))
    return architecture(config).eval()


def _ids(length: int, model: PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (1, length), generator=generator)


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: torch.Tensor) -> None:
    model.base_model(ids, **({"use_cache": False} if model.can_generate() else {}))


def _child(folder: Path, length: int) -> int:
    command = [sys.executable, "-m", "maclaurin.convert.cost", str(folder), str(length)]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _measure(folder: Path, length: int) -> int:
    model = _model(folder, length)
    _forward(model, _ids(64, model))
    ids = _ids(length, model)
    before = _resident()
    _forward(model, ids)
    return _peak() - before


if __name__ == "__main__":
    print(_measure(Path(sys.argv[1]), int(sys.argv[2])))
