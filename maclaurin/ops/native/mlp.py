"""What stands between the mixers of two layers, in one call for the few tokens of a decoding step.

y = x + added;   y += W_down (silu(W_gate n) ⊙ W_up n) with n = norm(y);   normed = the next layer's norm of y
"""

# B tokens, D channels, E inner channels

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maclaurin.ops.native import library
from maclaurin.ops.native.library import MLP, buffer

MULTIPLE = 16  # of which D and E must be


class BetweenMixers:
    """weights: of norm, gate, up, down and the next norm, (D), (E,D), (E,D), (D,E) and (D), in float32 on a CPU. Read
    where they are."""

    def __init__(self, weights: Sequence[Tensor], epsilon: float, next_epsilon: float) -> None:
        if not fits(weights):
            shapes = [tuple(x.shape) for x in weights]
            raise ValueError(
                f"weights must be dense and float32 on a CPU, of multiples of {MULTIPLE} channels, got {shapes}"
            )
        self.weights, self.epsilons = list(weights), (epsilon, next_epsilon)

    def __call__(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """y and normed (B, 1, D), for x and added of that shape."""
        x, added = x.contiguous(), added.contiguous()
        B, (E, D) = x.shape[0], self.weights[1].shape
        if not x.shape == added.shape == (B, 1, D) or not x.dtype == added.dtype == torch.float32:
            raise ValueError(f"x and added must have the shape (B, 1, {D}) in float32, got {x.shape}, {added.shape}")
        y, normed = buffer(B, 1, D), buffer(B, 1, D)
        pointers = [one.data_ptr() for one in (x, added, *self.weights, y, normed)]
        assert library.mlp_forward is not None
        if library.mlp_forward(MLP.pack(B, D, E, *pointers, *self.epsilons, torch.get_num_threads())):
            raise MemoryError("the native kernel of an MLP found no memory for its blocks")
        return y, normed


def fits(weights: Sequence[Tensor]) -> bool:
    """Whether the kernel takes them."""
    if not library.available() or not all(x.is_cpu and x.dtype == torch.float32 and x.is_contiguous() for x in weights):
        return False
    E, D = weights[1].shape
    shapes = [(D,), (E, D), (E, D), (D, E), (D,)]
    return all(x.shape == shape for x, shape in zip(weights, shapes, strict=True)) and not (D % MULTIPLE or E % MULTIPLE)
