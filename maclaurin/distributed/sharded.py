"""Models whose parameters are spread over processes by PyTorch's FSDP2, and their checkpoints.

A checkpoint of `torch.distributed.checkpoint` has a file per process and loads on any number of them; `consolidate` makes
of it the one file that everybody reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

METADATA, WEIGHTS = ".metadata", "model.safetensors"


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """The model with its parameters spread over the processes of a mesh, layer by layer; in place. options: of
    `fully_shard`."""
    layers = [module for module in model.modules() if type(module).__name__ in getattr(model, "_no_split_modules", ())]
    if not layers:
        raise ValueError(f"{type(model).__name__} names no layers that could be sharded: _no_split_modules is empty")
    for layer in layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def save_sharded(model: nn.Module, folder: Path) -> None:
    """Each process writes its part; all must call it."""
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder)


def load_sharded(model: nn.Module, folder: Path) -> None:
    """What any number of processes has saved, into a model that is spread over any number of them; all must call it."""
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state, options=StateDictOptions(strict=True))


def consolidate(folder: Path, output: Path) -> Path:
    """Of a sharded checkpoint, model.safetensors in `output`; in one process, without a model."""
    if not (folder / METADATA).is_file():
        raise ValueError(f"{str(folder)!r} is no checkpoint of torch.distributed.checkpoint: it lacks {METADATA}")
    reader = checkpoint.FileSystemReader(folder)
    described = reader.read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(one.size, dtype=one.properties.dtype, device="cpu")
        for name, one in described.items()
        if isinstance(one, TensorStorageMetadata)
    }
    checkpoint.load(weights, storage_reader=reader, no_dist=True)
    output.mkdir(parents=True, exist_ok=True)
    save_file(weights, output / WEIGHTS, {"format": "pt"})
    return output / WEIGHTS
