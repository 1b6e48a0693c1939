"""The one to read first is right: it is the matrix of reference.py, and its state goes on anywhere between two chunks."""

import pytest
import torch

from maclaurin.ops import reference
from maclaurin.ops.minimal import second_order_attention


def tokens(batch, time, heads, key_dim, value_dim):
    generator = torch.Generator().manual_seed(time + key_dim)
    q, k = (torch.randn(batch, time, heads, key_dim, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.randn(batch, time, heads, value_dim, generator=generator, dtype=torch.float64)
    return q, k, v, -torch.rand(batch, time, heads, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("time", "chunk"), [(12, 1), (12, 4), (12, 12), (128, 64)])
@pytest.mark.parametrize(("heads", "key_dim", "value_dim"), [(1, 1, 3), (2, 5, 4), (3, 8, 1)])
def test_it_is_the_reference(time, chunk, heads, key_dim, value_dim):
    inputs = tokens(2, time, heads, key_dim, value_dim)
    y, _ = second_order_attention(*inputs, chunk=chunk)
    torch.testing.assert_close(y, reference.power_attention(*inputs), rtol=1e-9, atol=1e-11)


def test_a_state_is_all_that_the_next_call_needs():
    inputs = tokens(2, 24, 2, 4, 3)
    whole, end = second_order_attention(*inputs, chunk=4)
    first, state = second_order_attention(*(x[:, :8] for x in inputs), chunk=8)
    second, last = second_order_attention(*(x[:, 8:] for x in inputs), state, chunk=2)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(last, end)
    assert state.shape == (2, 2, 4, 4, 4)


def test_gradients_are_those_of_the_reference():
    results = []
    for attention in (lambda *x: second_order_attention(*x, chunk=4)[0], reference.power_attention):
        inputs = [x.requires_grad_() for x in tokens(1, 12, 2, 3, 2)]
        results.append(torch.autograd.grad(attention(*inputs).square().sum(), inputs))
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-9)
