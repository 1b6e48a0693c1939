"""Calls of the Triton kernels beside the oracle in float64."""

from dataclasses import dataclass, replace

import torch

from maclaurin.ops import power_attention, reference
from tests.ops.helpers import distance

FORWARD, BACKWARD = 2e-6, 1e-5


@dataclass(frozen=True)
class Sizes:
    T: int = 40
    G: int = 1
    R: int = 1
    K: int = 5
    V: int = 3
    B: int = 1
    decay: float | None = 0.05
    normalize: bool = True
    form: str = "chunked"
    dtype: torch.dtype = torch.float32

    def draw(self, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator).to(self.dtype)

        q, k, v = (
            normal(self.B, self.T, heads, channels)
            for heads, channels in ((self.G * self.R, self.K), (self.G, self.K), (self.G, self.V))
        )
        if self.decay is None:
            return q, k, v, None
        return q, k, v, -self.decay * torch.rand(self.B, self.T, self.G, generator=generator)


def kernels(inputs, size, **options):
    """y and the state, through the kernels; a chunk is one block of the interpreter's tiles."""
    return power_attention(
        *inputs, normalize=size.normalize, form=size.form, backend="triton", **{"chunk_size": 32, **options}
    )


def gradients(inputs, size, backend):
    """y, and the gradients by all inputs: of the kernels, or of the oracle in float64."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    if backend == "oracle":
        leaves = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
        y = reference.power_attention(*leaves, normalize=size.normalize)
    else:
        y, _ = kernels(leaves, size, return_state=False)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    y.backward(dy.to(y.dtype))
    return [y.detach(), *(x.grad for x in leaves if x is not None)]


def errors(inputs, size):
    """Relative, of y and of every gradient."""
    pairs = zip(gradients(inputs, size, "kernels"), gradients(inputs, size, "oracle"), strict=True)
    return [distance(found, expected) for found, expected in pairs]


def assert_right(size, inputs=None):
    y, *rest = errors(size.draw() if inputs is None else inputs, size)
    assert y <= FORWARD, f"{size}: y is off by {y:.1e}"
    assert all(error <= BACKWARD for error in rest), f"{size}: gradients are off by {rest}"


def direct(size):
    return replace(size, form="parallel")
