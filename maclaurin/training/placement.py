"""Weights and states of the optimizer in a checkpoint, whole or in the parts of the processes, and in the model likewise.

A run whose parameters are spread over processes writes its part of a checkpoint in each of them
(`maclaurin.distributed.sharded`). Every run goes on from either kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from maclaurin.distributed.heads import shares_of, spread
from maclaurin.distributed.sharded import is_sharded, load_sharded
from maclaurin.training.checkpoints import WEIGHTS

OPTIMIZER = "optimizer.pt"
WHOLE = StateDictOptions(full_state_dict=True)


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """Of a model that is spread over processes, all of which must call it; empty in all but the first one."""
    weights: dict[str, Any] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return weights


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """All processes must call it."""
    if is_sharded(checkpoint):
        load_sharded(model, checkpoint)
    else:
        weights: dict[str, Any] = load_file(checkpoint / WEIGHTS)
        shares = shares_of(model)
        parameters = ((name, like) for name, like in model.named_parameters() if name in weights)
        weights |= {name: spread(weights[name], like, shares.get(name)) for name, like in parameters}
        set_model_state_dict(model, weights, options=WHOLE)


def load_optimizer(model: nn.Module, optimizer: Optimizer, checkpoint: Path) -> None:
    """All processes must call it."""
    if is_sharded(checkpoint):
        load_sharded(model, checkpoint, optimizer)
    else:
        whole = torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)
        state = _by_name(model, optimizer, whole)
        shares = shares_of(model)
        for name, like in model.named_parameters():
            values = state["state"].get(name, {})
            like_it = ((key, one) for key, one in values.items() if one.shape == like.shape)
            values.update({key: spread(one, like, shares.get(name)) for key, one in like_it})
        set_optimizer_state_dict(model, optimizer, state, options=WHOLE)
    for group in optimizer.param_groups:  # how a step is computed is no matter of the checkpoint
        group.update({name: optimizer.defaults[name] for name in ("fused", "foreach") if name in optimizer.defaults})


def _by_name(model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's own state_dict, which knows parameters by their place in its groups, with their names instead."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {
        "state": {ordered[place]: values for place, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [ordered[place] for place in group["params"]]} for group in state["param_groups"]
        ],
    }
