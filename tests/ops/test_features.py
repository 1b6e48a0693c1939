"""The symmetric feature map and the polynomials that it stands for."""

import itertools
import math
from contextlib import contextmanager, suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from maclaurin.ops import reference, symmetric_power
from maclaurin.ops.features import Kernel, contract, expand, monomials, multiplicity
from tests.ops.helpers import assert_close


@settings(max_examples=40)
@given(d=st.integers(1, 9), order=st.integers(1, 5), seed=st.integers(0, 99))
def test_features_multiply_to_a_power_of_the_score(d, order, seed):
    x, y = torch.randn(2, 3, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    features = symmetric_power(x, order)
    assert features.shape == (3, math.comb(d + order - 1, order))
    assert_close(features, reference.symmetric_power(x, order), 1e-14)
    scores = (x @ y.T) ** order
    scale = (x.norm(dim=-1)[:, None] * y.norm(dim=-1)) ** order
    assert ((features @ symmetric_power(y, order).T - scores).abs() <= 1e-12 * scale).all()


@pytest.mark.parametrize("d", [1, 2, 5, 48])
def test_pairs_stand_in_the_rows_of_the_upper_triangle(d):
    x = torch.randn(d, dtype=torch.float64)
    features = symmetric_power(x)
    assert features.shape == (d * (d + 1) // 2,)
    for p, r in itertools.combinations_with_replacement(range(d), 2):
        factor = 1 if p == r else math.sqrt(2)
        torch.testing.assert_close(features[p * d - p * (p - 1) // 2 + (r - p)], factor * x[p] * x[r])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("d", [1, 3, 6])
def test_multiplicities_count_all_ordered_tuples(d, order):
    counts = multiplicity(d, order)
    assert counts.sum() == d**order
    expected = [
        math.factorial(order) / math.prod(math.factorial(m) for m in (index.count(i) for i in set(index)))
        for index in itertools.combinations_with_replacement(range(d), order)
    ]
    assert torch.equal(counts, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_keep_leading_dimensions_and_dtype(shape, dtype):
    features = symmetric_power(torch.randn(shape).to(dtype))
    assert features.shape == (*shape[:-1], 15) and features.dtype == dtype


@pytest.mark.parametrize("orders", [(1,), (2,), (3,), (0, 1, 2), (1, 4), (0, 5)])
def test_monomials_pass_gradcheck(orders):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: monomials(x, orders), (x,))
    grad = torch.randn_like(expand(x.detach(), orders))
    (expected,) = torch.autograd.grad(monomials(x, orders), x, grad)
    assert_close(contract(x.detach(), grad, orders), expected, 1e-14)


@settings(max_examples=30)
@given(orders=st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(sorted).filter(lambda o: o != [0]))
def test_a_kernel_is_its_terms_of_the_exponential(orders):
    kernel = Kernel.of(orders)
    x = torch.linspace(-3, 3, 50, dtype=torch.float64, requires_grad=True)
    expected = sum(x**n / math.factorial(n) for n in orders)
    assert_close(kernel(x), expected, 1e-13)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    assert_close(kernel.derivative(x.detach()), slope, 1e-13)
    weights = torch.rand(len(orders), 1, dtype=torch.float64)
    weighted = sum(w * x**n / math.factorial(n) for w, n in zip(weights, orders, strict=True))
    assert_close(kernel(x, weights), weighted, 1e-13)
    (slope,) = torch.autograd.grad(weighted.sum(), x)
    assert_close(kernel.derivative(x.detach(), weights), slope, 1e-13)


def test_features_of_a_series_multiply_to_the_series():
    kernel = Kernel.of((0, 1, 2, 3))
    x, y = torch.randn(2, 4, 5, dtype=torch.float64)
    assert_close(kernel.features(x) @ kernel.features(y).T, kernel(x @ y.T), 1e-12)


def test_eighty_terms_are_the_exponential():
    x = torch.linspace(-5, 20, 50, dtype=torch.float64)
    assert_close(Kernel.of(range(80))(x), x.exp(), 1e-12)


@pytest.mark.parametrize("order", [0, -1, True, 1.5, (), (0,), (2, 1), (1, 1), (-1, 2), (0, 1.0), "2", None])
def test_an_order_must_be_a_power_or_rising_terms(order):
    with pytest.raises(ValueError, match="order must be a whole number >= 1, or an increasing sequence"):
        Kernel.of(order)


@contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


ELSEWHERE = {
    "inference": torch.inference_mode,
    "fake": FakeTensorMode,
    "meta": lambda: default_device("meta"),
    "flops": lambda: FlopCounterMode(display=False),
}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_tables_first_made_elsewhere_serve_every_later_call(place):
    somewhere, kernel = ELSEWHERE[place], Kernel.of((0, 2, 3))
    dim = 11 + list(ELSEWHERE).index(place)  # that nothing else uses, so that the tables are made here
    with somewhere(), suppress(DynamicOutputShapeException):
        kernel.features(torch.ones(2, dim, dtype=torch.float64, device="cpu"))
        kernel.feature_weights(dim, torch.ones(1, dtype=torch.float64, device="cpu"))
    x, y = torch.randn(2, 3, dim, dtype=torch.float64).requires_grad_().unbind()
    score = (kernel.features(x) * kernel.features(y)).sum(-1)
    torch.testing.assert_close(score, kernel((x * y).sum(-1)))
    (gradient,) = torch.autograd.grad((kernel.feature_weights(dim, x) * kernel.features(x)).sum(), x)
    assert gradient.isfinite().all()
