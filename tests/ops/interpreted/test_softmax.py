"""Softmax with decay in the Triton kernels, against float64."""

import pytest
import torch

from maclaurin.ops import reference, softmax_attention
from tests.ops.helpers import assert_close, assert_same_gradients, distance
from tests.ops.interpreted.helpers import BACKWARD, FORWARD, Sizes


def run(function, inputs, **options):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    found = function(*leaves, **options)
    y = found if isinstance(found, torch.Tensor) else found[0]
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    y.backward(dy.to(y.dtype))
    return y.detach(), {str(n): x.grad.double() for n, x in enumerate(leaves)}


@pytest.mark.parametrize(
    "size", [Sizes(T=70, R=2), pytest.param(Sizes(T=97, B=2, G=2, K=33, V=40), marks=pytest.mark.slow)], ids=str
)
def test_outputs_and_gradients_are_those_of_the_oracle(size):
    """With scores of some tens and a decay of -1e4: nothing overflows, and nothing is lost beside it."""
    q, k, v, a = size.draw()
    q, a[:, 30] = 8 * q, -1e4
    y, gradients = run(softmax_attention, (q, k, v, a), backend="triton", return_state=False)
    expected, rights = run(reference.softmax_attention, [x.double() for x in (q, k, v, a)])
    assert_close(y, expected, 4 * FORWARD)  # eight times larger scores
    assert_same_gradients(gradients, rights, 2 * BACKWARD)


def test_states_carry_over():
    inputs = Sizes(T=40).draw()
    expected = reference.softmax_attention(*(x.double() for x in inputs))
    with torch.no_grad():
        first, state = softmax_attention(*(x[:, :33] for x in inputs), backend="triton")
        second, _ = softmax_attention(*(x[:, 33:] for x in inputs), state=state, backend="triton")
    assert_close(torch.cat([first, second], 1), expected, FORWARD)


def test_bfloat16_loses_no_more_than_plain_pytorch():
    q, k, v, a = Sizes(T=64, K=16, V=16, dtype=torch.bfloat16).draw()
    expected = reference.softmax_attention(*(x.double() for x in (q, k, v, a)))
    with torch.no_grad():
        y, _ = softmax_attention(q, k, v, a, backend="triton", return_state=False)
    plain = distance(reference.softmax_attention(q, k, v, a.bfloat16()), expected)
    assert distance(y, expected) <= 2 * plain
