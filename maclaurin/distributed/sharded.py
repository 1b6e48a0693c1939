"""Models whose parameters are spread over processes by PyTorch's FSDP2, and their checkpoints.

A checkpoint of `torch.distributed.checkpoint` has a file per process and loads on any number of them, also where the model
is whole; `consolidate` makes of it the one file that everybody reads. What is split by heads (`heads.py`) is in it as one
process has it.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import Optimizer

from maclaurin.common.files import replacing
from maclaurin.distributed.heads import shares_of, spread
from maclaurin.distributed.tensor import tensor_plan

METADATA, WEIGHTS, CONFIG = ".metadata", "model.safetensors", "config.json"
OPTIMIZER = "optimizer"  # beside the names of weights


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


def shard_and_split(model: nn.Module, processes: int, device_type: str) -> nn.Module:
    """The heads of mixers and the channels of MLPs split over so many processes that follow one another (`tensor.py`), and
    what each of these has spread over the others with the same part; in place. Batches are those of the latter.
    """
    plan = tensor_plan(model)  # first: a process that refuses must not leave others waiting for it in a mesh
    groups = distributed.get_world_size() // processes
    mesh = init_device_mesh(device_type, (groups, processes), mesh_dim_names=("data", "heads"))
    parallelize_module(model, mesh["heads"], plan)
    return shard(model, mesh["data"])


def save_sharded(model: nn.Module, folder: Path, optimizer: Optimizer | None = None) -> None:
    """Each process writes its part; all must call it."""
    try:
        checkpoint.save(_parts(model, optimizer), checkpoint_id=folder)
    except CheckpointException as error:  # PyTorch's is no Exception, and has those of all processes
        first = next(iter(error.failures.values()))[0]
        raise OSError(f"{folder} could not be written: {type(first).__name__}: {first}") from error


def load_sharded(model: nn.Module, folder: Path, optimizer: Optimizer | None = None) -> None:
    """What any number of processes has saved, into a model that is whole or spread over any number of them; all must call
    it.
    """
    state = _parts(model, optimizer)
    _read(state, folder)
    if optimizer is not None:
        of_optimizer = state.pop(OPTIMIZER)
        for name, share in shares_of(model).items():
            like, values = model.get_parameter(name), of_optimizer["state"].get(name, {})
            values.update({key: spread(one, like, share) for key, one in values.items() if one.shape == like.shape})
        set_optimizer_state_dict(model, optimizer, of_optimizer)
    set_model_state_dict(model, state, options=StateDictOptions(strict=True))


def is_sharded(folder: Path) -> bool:
    return (folder / METADATA).is_file()


def _read(state: dict[str, Any], folder: Path) -> None:
    """Into its tensors, in place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one process alone would be told that it is one
        checkpoint.load(state, checkpoint_id=folder)


def _parts(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """Of this process."""
    state: dict[str, Any] = get_model_state_dict(model)
    if optimizer is None:
        return state
    of_optimizer: dict[str, Any] = get_optimizer_state_dict(model, optimizer)
    for name, share in shares_of(model).items():
        values = of_optimizer["state"].get(name, {})  # the optimizer's own
        whole = {key: share.joined(one.full_tensor()) for key, one in values.items() if isinstance(one, DTensor)}
        of_optimizer["state"][name] = {**values, **whole}
    return {**state, OPTIMIZER: of_optimizer}


def consolidate(folder: Path, output: Path) -> Path:
    """Of a sharded checkpoint, model.safetensors in `output`, and the configuration if there is one; in one process, without
    a model.
    """
    if not is_sharded(folder):
        raise ValueError(f"{str(folder)!r} is no checkpoint of torch.distributed.checkpoint: it lacks {METADATA}")
    described = checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(one.size, dtype=one.properties.dtype, device="cpu")
        for name, one in described.items()
        if isinstance(one, TensorStorageMetadata) and not name.startswith(f"{OPTIMIZER}.")
    }
    _read(weights, folder)
    output.mkdir(parents=True, exist_ok=True)
    with replacing(output / WEIGHTS) as temporary:
        save_file(weights, temporary, {"format": "pt"})
    if (folder / CONFIG).is_file() and folder.resolve() != output.resolve():
        shutil.copyfile(folder / CONFIG, output / CONFIG)
    return output / WEIGHTS
