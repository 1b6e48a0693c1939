"""Decoding steps of the short convolution that move the last inputs of all sequences on where they are."""

# B sequences, C channels, W width

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.ops.native import library
from maclaurin.ops.native.library import CONV_STEP, buffer
from maclaurin.ops.states import ConvState


@dataclass(frozen=True)
class ConvInPlace(ConvState):
    """Of sequences in slots, dense and in float32 on a CPU: one more token of each joins those before it."""

    def step(self, x_B1C: Tensor, weight_CW: Tensor, bias_C: Tensor | None, activation: str) -> Tensor:
        inputs, weight_CW = self.inputs, weight_CW.contiguous()
        (B, _, C), width = x_B1C.shape, inputs.shape[1] + 1
        biases = () if bias_C is None else (bias_C,)
        fit = x_B1C.shape == (B, 1, C) and x_B1C.stride(2) == 1 and inputs.shape == (B, width - 1, C)
        fit = fit and weight_CW.shape == (C, width) and inputs.is_contiguous() and all(x.shape == (C,) for x in biases)
        tensors = (x_B1C, weight_CW, inputs, *biases)
        if not fit or not all(x.dtype == torch.float32 and x.is_cpu for x in tensors):
            shapes = [tuple(x.shape) for x in tensors]
            raise ValueError(f"a step in place needs float32 tensors on a CPU that fit each other, got {shapes}")
        y = buffer(B, 1, C)
        bias = 0 if bias_C is None else bias_C.data_ptr()
        pointers = (x_B1C.data_ptr(), weight_CW.data_ptr(), bias, inputs.data_ptr(), y.data_ptr())
        sizes = (B, C, width, x_B1C.stride(0))
        assert library.conv_step is not None
        if library.conv_step(CONV_STEP.pack(*sizes, *pointers, activation == "silu", torch.get_num_threads())):
            raise MemoryError("the native step of a convolution found no memory for its blocks")
        return y
