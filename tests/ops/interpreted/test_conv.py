"""The short convolution in Triton, against float64."""

import pytest
import torch

from maclaurin.ops import short_conv
from tests.ops.helpers import assert_close


@pytest.mark.parametrize(("width", "bias", "activation"), [(4, True, "silu"), (2, False, "identity"), (1, True, "silu")])
def test_outputs_states_and_gradients(width, bias, activation):
    """In two pieces with the state between them, more tokens and channels than a block has."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 90, 70, generator=generator)
    weight, offset = torch.randn(70, width, generator=generator), torch.randn(70, generator=generator) if bias else None
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [None if t is None else t.to(dtype).clone().requires_grad_() for t in (x, weight, offset)]
        first, state = short_conv(leaves[0][:, :70], *leaves[1:], activation=activation, backend=backend)
        second, _ = short_conv(leaves[0][:, 70:], *leaves[1:], activation=activation, backend=backend, state=state)
        y = torch.cat([first, second], 1)
        (y * torch.sin(torch.arange(y.numel(), dtype=dtype)).view_as(y)).sum().backward()
        found.append([y.detach(), *(leaf.grad for leaf in leaves if leaf is not None)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, 2e-6)


def test_bfloat16_is_rounded_once():
    x, weight = torch.randn(1, 9, 5).bfloat16(), torch.randn(5, 4)
    y, _ = short_conv(x, weight, backend="triton")
    expected, _ = short_conv(x.double(), weight.double(), backend="torch")
    assert y.dtype == torch.bfloat16
    assert_close(y, expected, 4e-3)
