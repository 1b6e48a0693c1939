"""A network of one number, by its table and by its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import piecewise
from tests.ops.test_cost import LargestTensor, Traffic


def weights(hidden, outputs, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    draw = [
        torch.randn(size, generator=generator, dtype=torch.float64) for size in [(hidden,), (hidden,), (hidden, outputs)]
    ]
    return [x.to(dtype) for x in (*draw, torch.randn(outputs, generator=generator, dtype=torch.float64))]


def numbers(*shape, seed=1, dtype=torch.float64):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


@settings(max_examples=30)
@given(hidden=st.integers(1, 70), outputs=st.integers(1, 5), count=st.integers(0, 300), seed=st.integers(0, 99))
def test_the_table_is_the_network(hidden, outputs, count, seed):
    """Few numbers and many, any number of knots, and the gradients of everything."""
    leaves = [x.requires_grad_() for x in (numbers(2, count, seed=seed), *weights(hidden, outputs, seed))]
    wanted = numbers(2, count, outputs, seed=seed + 1)
    results = []
    for network in (ops.scalar_mlp, ops.reference.scalar_mlp):
        y = network(*leaves)
        results.append([y, *torch.autograd.grad((y * wanted).sum(), leaves)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_blocks_meet_without_a_seam(monkeypatch):
    u, network = numbers(1000).requires_grad_(), weights(8, 3)
    whole = ops.scalar_mlp(u, *network)
    (gradient,) = torch.autograd.grad(whole.square().sum(), u)
    monkeypatch.setattr(piecewise, "BLOCK", 77)
    split = ops.scalar_mlp(u, *network)
    assert torch.equal(split, whole)
    assert torch.equal(torch.autograd.grad(split.square().sum(), u)[0], gradient)


def test_units_without_a_knot_and_knots_in_one_place():
    """w = 0 with either sign of b, repeated knots, numbers exactly on a knot, a knot far away."""
    w = torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, 2.0, -2.0, 1e-30, -1e-30], dtype=torch.float64)
    b = torch.tensor([1.0, -1.0, 0.0, -1.0, 1.0, -2.0, 2.0, 1.0, -1.0], dtype=torch.float64)
    _, _, out, bias = weights(9, 2)
    u = torch.cat([numbers(500), torch.tensor([1.0, 0.0, 1e30, -1e30], dtype=torch.float64)])
    got, expected = ops.scalar_mlp(u, w, b, out, bias), ops.reference.scalar_mlp(u, w, b, out, bias)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("hidden", [1, 16, 17, 64, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_precision_is_that_of_float32(dtype, hidden):
    """No worse than twice what the sum written out in float32 loses against float64; 700 knots are searched in two steps."""
    u, network = numbers(4096, dtype=dtype), weights(hidden, 4, dtype=dtype)
    exact = ops.reference.scalar_mlp(u.double(), *(x.double() for x in network))
    plain = ops.reference.scalar_mlp(u.float(), *(x.float() for x in network))
    got = ops.scalar_mlp(u, *network)
    assert got.dtype == torch.float32
    assert (got - exact).norm() <= 2 * (plain - exact).norm()


def test_no_hidden_number_is_kept_or_made():
    """Nothing larger than the outputs, forward or backward, and a cost that grows with the numbers alone."""
    network = [x.requires_grad_() for x in weights(64, 4, dtype=torch.float32)]
    written = []
    for count in (2**16, 2**17):
        u = numbers(count, dtype=torch.float32).requires_grad_()
        with LargestTensor() as largest:
            ops.scalar_mlp(u, *network).sum().backward()
        assert largest.numel <= 4 * count
        with Traffic() as traffic:
            ops.scalar_mlp(u, *network).sum().backward()
        written.append(traffic.numel)
    assert written[1] / written[0] == pytest.approx(2, rel=0.05)
