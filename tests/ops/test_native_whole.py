"""Squared scores over whole sequences: the kernels against the matrix, both ways with a decay and one state without."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native
from tests.ops.helpers import assert_close
from tests.ops.native_helpers import BACKWARD, FORWARD, ISAS

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")


@st.composite
def calls(draw):
    """Leaves q, k, v and perhaps log_decay in float32, options, and a direction for the gradients."""
    B, G, R = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    decayed = draw(st.booleans())
    # a state has (q·k)² as a sum of larger terms, which cancel where q is orthogonal to the only key
    shortest = 1 if decayed else 16
    T = draw(st.one_of(st.integers(shortest, 40), st.sampled_from((64, 65, 127, 128, 129, 200, 257))))
    K, V = draw(st.sampled_from((1, 3, 8, 16, 33))), draw(st.sampled_from((1, 5, 16, 33, 80)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sizes = ((G * R, K), (G, K), (G, V))
    leaves = [torch.randn(B, heads, T, size, generator=generator).transpose(1, 2) for heads, size in sizes]
    if decayed:
        leaves.append(-torch.rand(B, T, G, generator=generator) * draw(st.sampled_from((0.0, 0.01, 3.0, 1e4))))
    lengths = torch.randint(shortest - 1, T + 1, (B,), generator=generator) if draw(st.booleans()) else None
    options = {"normalize": draw(st.booleans()), "lengths": lengths}
    return leaves, options, torch.randn(B, T, G * R, V, generator=generator)


def run(leaves, options, direction, dtype, form):
    leaves = [x.detach().to(dtype).requires_grad_() for x in leaves]
    y = ops.bidirectional_power(*leaves, form=form, **options)
    return y.detach(), torch.autograd.grad(y, leaves, direction.to(dtype))


def gradients_of_the_numerator(leaves, options, direction):
    """What is left of a gradient when the divisor is held fixed: the larger of two terms that may cancel to nothing."""
    q, k, v, *decay = (x.double() for x in leaves)
    options = options | {"normalize": False}
    total = ops.bidirectional_power(q, k, torch.ones_like(v[..., :1]), *decay, form="parallel", **options)
    return run(leaves, options, direction / total.where(total > 0, 1), torch.float64, "parallel")[1]


@settings(max_examples=150)
@given(call=calls(), isa=st.sampled_from(ISAS or ["none"]), threads=st.integers(1, 3))
def test_the_kernels_are_the_matrix(call, isa, threads):
    """Outputs to 1e-5; gradients to 1e-4, or to 1e-6 of the terms of which they are the difference."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with native.using_isa(isa):
            y, got = run(*call, torch.float32, "chunked")
    finally:
        torch.set_num_threads(before)
    expected, exact = run(*call, torch.float64, "parallel")
    assert_close(y, expected, FORWARD)
    terms = gradients_of_the_numerator(*call) if call[1]["normalize"] else exact
    smallest = 1e-6 * sum(x.norm() for x in terms)
    for x, gradient in zip(got, exact, strict=True):
        assert (x.double() - gradient).norm() <= max(BACKWARD * gradient.norm(), smallest)


def test_both_ways_and_one_state_are_the_same_where_nothing_decays():
    q, k, v = torch.randn(3, 2, 300, 2, 16, generator=torch.Generator().manual_seed(0))
    one_state = ops.bidirectional_power(q, k, v, form="chunked")
    both_ways = ops.bidirectional_power(q, k, v, torch.zeros(2, 300, 2), form="chunked")
    assert_close(one_state, both_ways, 1e-6)


@settings(max_examples=30)
@given(call=calls())
def test_the_series_to_second_order_is_the_matrix(call):
    (q, k, v, *_), options, direction = call
    y, got = run((q, k, v), options | {"order": (0, 1, 2)}, direction, torch.float32, "chunked")
    expected, exact = run((q, k, v), options | {"order": (0, 1, 2)}, direction, torch.float64, "parallel")
    assert_close(y, expected, FORWARD)
    smallest = 1e-6 * sum(x.norm() for x in exact)
    for x, gradient in zip(got, exact, strict=True):
        assert (x.double() - gradient).norm() <= max(BACKWARD * gradient.norm(), smallest)


@pytest.mark.parametrize("decayed", [False, True])
def test_the_operator_passes_opcheck(decayed):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, 2, 4, generator=generator, requires_grad=True) for _ in range(3))
    a = (-torch.rand(2, 9, 2, generator=generator)).requires_grad_() if decayed else None
    torch.library.opcheck(torch.ops.maclaurin.whole, (q, k, v, a, 0.5, True))


def test_a_decay_of_key_value_heads_goes_to_the_kernels_and_one_of_query_heads_does_not(monkeypatch):
    called = []
    through = native.call
    monkeypatch.setattr(native, "call", lambda name, *rest: called.append(name) or through(name, *rest))
    q, k, v = torch.randn(1, 8, 4, 6), torch.randn(1, 8, 2, 6), torch.randn(1, 8, 2, 6)
    ops.bidirectional_power(q, k, v, -torch.rand(1, 8, 2))
    assert called == ["whole"]
    ops.bidirectional_power(q, k, v, -torch.rand(1, 8, 4))
    ops.bidirectional_power(q.double(), k.double(), v.double(), -torch.rand(1, 8, 2).double())
    assert called.count("whole") == 1
