"""Softmax with decay in the Triton kernels, against float64."""

import pytest
import torch

from maclaurin.ops import reference, softmax_attention
from maclaurin.ops.backends import watching
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


WINDOWS = [
    (Sizes(T=70, R=2), 5),
    (Sizes(T=70, decay=None), 33),
    pytest.param(Sizes(T=97, B=2, G=2, K=33, V=40), 20, marks=pytest.mark.slow),
    pytest.param(Sizes(T=40, K=16, V=150), 2, marks=pytest.mark.slow),
    pytest.param(Sizes(T=70), 100, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "window"), WINDOWS, ids=str)
def test_a_window_is_that_of_the_oracle(size, window):
    """Blocks before it, behind it, and such that only some of their queries see."""
    inputs = [x for x in size.draw() if x is not None]
    if size.decay is not None:
        inputs[3][:, 30] = -1e4
    y, gradients = run(softmax_attention, inputs, backend="triton", return_state=False, window=window)
    expected, rights = run(reference.softmax_attention, [x.double() for x in inputs], window=window)
    assert_close(y, expected, FORWARD)
    assert_same_gradients(gradients, rights, BACKWARD)


@pytest.mark.parametrize("decay", [0.05, None])
def test_windows_carry_over_with_their_gradients(decay):
    """Three pieces, of which the second is a decoding step, against the torch backend in float64."""
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in Sizes(T=45, R=2, decay=decay).draw() if x is not None]
        state, outputs = None, []
        for start, end in ((0, 30), (30, 31), (31, 45)):
            pieces = [x[:, start:end] for x in leaves]
            y, state = softmax_attention(*pieces, state=state, backend=backend, window=12)
            outputs.append(y)
        y = torch.cat(outputs, 1)
        (y * torch.sin(torch.arange(y.numel(), dtype=dtype)).view_as(y)).sum().backward()
        found.append([y.detach(), state.keys.detach(), *(x.grad for x in leaves)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, BACKWARD)


def test_a_window_of_ragged_and_packed_sequences():
    q, k, v, a = Sizes(T=40, B=2).draw()
    with torch.no_grad():
        options = {"backend": "triton", "window": 7, "return_state": False}
        y, _ = softmax_attention(q, k, v, a, lengths=torch.tensor([25, 40]), **options)
        packed = [torch.cat([x[0, :25], x[1]])[None] for x in (q, k, v, a)]
        z, _ = softmax_attention(*packed, cu_seqlens=[0, 25, 65], **options)
    expected = reference.softmax_attention(*(x[:1, :25].double() for x in (q, k, v, a)), window=7)
    assert_close(y[:1, :25], expected, FORWARD)
    assert_close(z[:, :25], expected, FORWARD)
    assert_close(z[:, 25:], y[1:], FORWARD)


@pytest.mark.parametrize(("decay", "window"), [(0.05, None), (0.05, 9), (None, 9)])
def test_states_that_begin_with_padding_carry_over_with_their_gradients(decay, window):
    """Three pieces of a ragged batch, of which the second is a decoding step, with scores of -20 on average."""
    found = []
    lengths = torch.tensor([3, 20]), torch.tensor([1, 1]), torch.tensor([14, 5])
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        size = Sizes(T=35, R=2, B=2, decay=decay)
        leaves = [x.to(dtype).requires_grad_() for x in size.draw() if x is not None]
        q, k, *rest = leaves
        state, outputs = None, []
        with watching() as choices:
            for (start, end), real in zip(((0, 20), (20, 21), (21, 35)), lengths, strict=True):
                pieces = [x[:, start:end] for x in (q - 4, k + 4, *rest)]
                y, state = softmax_attention(*pieces, state=state, lengths=real, backend=backend, window=window)
                outputs.append(y)
        assert {choice.backend for choice in choices} == {backend}
        y = torch.cat(outputs, 1)
        (y * torch.sin(torch.arange(y.numel(), dtype=dtype)).view_as(y)).sum().backward()
        found.append([y.detach(), state.keys.detach(), *(x.grad for x in leaves)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, BACKWARD)


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
