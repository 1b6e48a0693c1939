"""A model that reads less for every new token: weights of its projections in int8, recurrent states in bfloat16.

A decoding step multiplies each weight once, so that it takes as long as reading them does.
"""

from __future__ import annotations

import warnings
from typing import TypeVar

import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

from maclaurin.common.arguments import one_of
from maclaurin.ops.native.halves import STATE_DTYPES

Model = TypeVar("Model", bound=nn.Module)


def lighter(model: Model, *, int8_weights: bool = False, state_dtype: str = "float32") -> Model:
    """For inference on a CPU.

    int8_weights: a copy whose linear layers have int8 weights, by torch's dynamic quantisation; activations are rounded to
    7 bits as well. state_dtype: as in `power_attention`, in all layers that have it, of the model itself.
    """
    one_of("state_dtype", state_dtype, STATE_DTYPES)
    if int8_weights and any(x.device.type != "cpu" for x in model.parameters()):
        raise ValueError("int8_weights needs a model on the CPU")
    if int8_weights:
        with warnings.catch_warnings(action="ignore"):  # torch announces its successor, a package of its own
            model = quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)
    for module in model.modules():
        if hasattr(module, "state_dtype"):
            module.state_dtype = state_dtype  # type: ignore[assignment]
    return model
