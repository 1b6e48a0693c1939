"""Speed and memory of source and converted model against length: the same sizes, random weights, one forward.

Time does not depend on the weights, so lengths beyond the source's position table are measured with a larger table. Memory
is measured in one process per length and model; times are interleaved in one process.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from maclaurin.common.peak_memory import peak_bytes, resident_bytes
from maclaurin.common.timing import interleaved
from maclaurin.convert.result import Cost
from maclaurin.machine.inventory import load
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.models.linearised.classes import linear_class
from maclaurin.processes.children import end_with_parent, lifeline

SECONDS = 10.0  # per length


def cost_by_length(source: Path, converted: Path, lengths: tuple[int, ...]) -> tuple[Cost, ...]:
    """At each length."""
    folders = {"source": source, "converted": converted}
    rows = []
    for length in lengths:
        models = {name: _model(folder, length) for name, folder in folders.items()}
        ids = _ids(length, models["source"])
        times = interleaved({name: partial(_forward, model, ids) for name, model in models.items()}, seconds=SECONDS)
        sizes = {name: _in_a_process_of_its_own(folder, length) for name, folder in folders.items()}
        before, after = times["source"], times["converted"]
        rows.append(
            Cost(
                length,
                before.median / after.median,
                before.median,
                sizes["source"],
                after.median,
                sizes["converted"],
                (before.low, before.high),
                (after.low, after.high),
                load(),
            )
        )
    return tuple(rows)


def _model(folder: Path, length: int) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.max_position_embeddings = max(config.max_position_embeddings, length)
    name = config.architectures[0]
    if name == MaclaurinForCausalLM.__name__:
        return MaclaurinForCausalLM(config).eval()
    architecture = getattr(transformers, name, None)
    if architecture is None:
        architecture = linear_class(getattr(transformers, name.removeprefix("Linear")))
    else:
        config._attn_implementation = "sdpa"
    model: PreTrainedModel = architecture(config)
    return model.eval()


def _ids(length: int, model: PreTrainedModel) -> Tensor:
    return torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0), device="cpu")


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: Tensor) -> None:
    model.base_model(ids, **({"use_cache": False} if model.can_generate() else {}))


def _in_a_process_of_its_own(folder: Path, length: int) -> int:
    command = [sys.executable, "-m", "maclaurin.convert.cost", str(folder), str(length)]
    with lifeline() as stdin:
        return int(subprocess.run(command, stdin=stdin, check=True, capture_output=True, text=True).stdout)


def _measure(folder: Path, length: int) -> int:
    model = _model(folder, length)
    _forward(model, _ids(64, model))
    ids = _ids(length, model)
    before = resident_bytes()
    _forward(model, ids)
    return peak_bytes() - before


if __name__ == "__main__":
    end_with_parent()
    print(_measure(Path(sys.argv[1]), int(sys.argv[2])))
