"""The recurrent step of a mixer as an ONNX model: a token and the state in, its output and the next state out.

It holds standard operators only, so it runs wherever ONNX does, without PyTorch and without this package:

    start = export_step(mixer, "step.onnx")
    session = onnxruntime.InferenceSession("step.onnx")
    state = {name: tensor.numpy() for name, tensor in start.items()}
    for x in tokens:                                             # (1, 1, d_model), float32
        y, *after = session.run(None, {"x": x, **state})
        state = dict(zip(state, after))
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.mixers.base import Mixer, MixerState, Zeros
from maclaurin.ops.native.library import using_backend


def export_step(mixer: Mixer, path: str | os.PathLike[str], *, batch_size: int = 1) -> dict[str, Tensor]:
    """Write the step to `path` and return the state before the first token, by the names of the model's inputs.

    Inputs are `x` (batch, 1, d_model) and the tensors of the state, outputs `y` and `next.` before each of their names.
    The state must keep its shapes: power attention does with fold_at=1 and fold_every=1, a KV cache does not.
    """
    like = next(mixer.parameters())
    zeros = Zeros(batch_size, like.device, like.dtype)
    start, later = (mixer.state_of(tokens, zeros) for tokens in (1, 2))
    shapes = [{name: tensor.shape for name, tensor in state.tensors().items()} for state in (start, later)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"mixer must have a state that keeps its shapes from the first token on, got {mixer.kind!r}, whose state grows; "
            "power attention keeps them with fold_at=1 and fold_every=1"
        )
    tensors = start.tensors()
    names = [name.removeprefix("attention.") for name in tensors]
    x = torch.zeros(batch_size, 1, mixer.d_model, dtype=like.dtype, device=like.device)
    was_training = mixer.training
    try:
        with using_backend("torch"):  # the C++ kernels are no operators of ONNX
            torch.onnx.export(
                _Step(mixer, start).eval(),
                (x, *tensors.values()),
                path,
                input_names=["x", *names],
                output_names=["y", *(f"next.{name}" for name in names)],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        mixer.train(was_training)
    return dict(zip(names, tensors.values(), strict=True))


class _Step(nn.Module):
    def __init__(self, mixer: Mixer, start: MixerState) -> None:
        super().__init__()
        self.mixer = mixer
        self.start = start

    def forward(self, x: Tensor, *tensors: Tensor) -> tuple[Any, ...]:
        y, after = self.mixer(x, self.start.with_tensors(tensors), form="recurrent")
        return y, *after.tensors().values()
