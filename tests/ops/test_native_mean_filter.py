"""The kernel of InLine's causal filter: what it states, in every shape, instruction set and thread count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin.ops import native, reference
from maclaurin.ops.local import mean_filter_and_sum
from tests.ops.native_helpers import ISAS

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")
CHANNELS = st.sampled_from((1, 3, 8, 16, 17, 33, 64))
NAMES = ("x", "v", "first", "first_bias", "second", "second_bias")


def inputs(B, T, H, D, C, V, W, size=1.0):
    shapes = ((B, T, H, D), (B, T, H, V), (H, D, C), (H, C), (H, C, W * V), (H, W * V))
    scales = (size, 1.0, D**-0.5, 1.0, C**-0.5, 1.0)
    return [scale * torch.randn(shape) for shape, scale in zip(shapes, scales, strict=True)]


@st.composite
def calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    B, H, W = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    T = draw(st.one_of(st.integers(1, 9), st.sampled_from((31, 32, 33, 64, 101))))
    given = inputs(B, T, H, *(draw(CHANNELS) for _ in range(3)), W, draw(st.sampled_from((1.0, 10.0))))
    if draw(st.booleans()):  # tokens of a wider tensor, as parts of a projection are
        given[:2] = [torch.nn.functional.pad(x, (3, 2, 1, 0))[:, :, 1:, 3:-2] for x in given[:2]]
    return given


def stated(x, v, *weights):
    return reference.mean_filter(x, v, *weights), x.sum(1)


def by_kernel(*tensors):
    return native.call("mean_filter", *tensors)


def with_gradients(run, tensors, wanted):
    leaves = [x.detach().requires_grad_() for x in tensors]
    outputs = run(*leaves)
    loss = sum((y * weight.to(y.dtype)).sum() for y, weight in zip(outputs, wanted, strict=True))
    return [*outputs, *torch.autograd.grad(loss, leaves)]


def assert_as_stated(tensors):
    """Outputs and all gradients are those in float64, to float32's digits of the largest number."""
    x, v = tensors[:2]
    wanted = torch.randn(v.shape), torch.randn(x.shape[0], *x.shape[2:])
    found = with_gradients(by_kernel, tensors, wanted)
    exact = with_gradients(stated, [z.double() for z in tensors], wanted)
    plain = with_gradients(stated, tensors, wanted)
    for name, got, right, torchs in zip(("y", "sum", *NAMES), found, exact, plain, strict=True):
        allowed = 2 * (torchs - right).abs().max() + 2e-6 * right.abs().max()
        assert got.shape == right.shape and (got - right).abs().max() <= allowed, name


@settings(max_examples=60)
@given(call=calls())
def test_it_is_what_it_states(call):
    assert_as_stated(call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(call=calls())
def test_every_instruction_set_is_what_it_states(isa, call):
    with native.using_isa(isa):
        assert_as_stated(call)


@settings(max_examples=20)
@given(call=calls())
def test_torch_computes_the_same(call):
    wanted = torch.randn(call[1].shape), torch.randn(call[0].shape[0], *call[0].shape[2:])
    call = [x.double() for x in call]
    for got, right in zip(*(with_gradients(run, call, wanted) for run in (mean_filter_and_sum, stated)), strict=True):
        assert (got - right).abs().max() <= 1e-10 * (1 + right.abs().max())


def test_threads_change_no_number():
    torch.manual_seed(0)
    call, before = inputs(2, 70, 3, 17, 8, 33, 3), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(with_gradients(by_kernel, call, (torch.ones(2, 70, 3, 33), torch.ones(2, 3, 17))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_no_token_sees_a_later_one(bad):
    torch.manual_seed(0)
    x, v, *weights = inputs(1, 80, 2, 9, 8, 17, 3)
    clean, _ = by_kernel(x, v, *weights)
    x[:, 45:], v[:, 45:] = bad, bad
    y, _ = by_kernel(x, v, *weights)
    assert torch.equal(y[:, :45], clean[:, :45]) and not y[:, 45].isfinite().any()


def test_the_gradient_of_a_token_is_of_it_and_later_ones():
    torch.manual_seed(0)
    call = inputs(1, 80, 2, 9, 8, 17, 3)
    wanted = torch.randn(1, 80, 2, 17)
    dx, dv, *_ = torch.ops.maclaurin.mean_filter_backward(wanted, None, *call)
    wanted[:, :40] = torch.nan
    dx_of_late, dv_of_late, *_ = torch.ops.maclaurin.mean_filter_backward(wanted, None, *call)
    assert torch.equal(dx[:, 40:], dx_of_late[:, 40:]) and torch.equal(dv[:, 40:], dv_of_late[:, 40:])
    assert dx_of_late[:, :40].isnan().all()


def test_a_long_mean_loses_no_digits():
    """Sums of a block are added once: a mean over 20,000 tokens has the digits of float32."""
    torch.manual_seed(0)
    call = inputs(1, 20_000, 1, 8, 8, 8, 3)
    call[0] += 1
    y, total = by_kernel(*call)
    exact, exact_total = stated(*(z.double() for z in call))
    assert (total - exact_total).abs().max() <= 1e-6 * exact_total.abs().max()
    assert (y - exact).abs().max() <= 4e-6 * exact.abs().max()


def test_a_second_derivative_is_refused():
    leaves = [x.requires_grad_() for x in inputs(1, 5, 1, 3, 3, 3, 2)]
    (gradient,) = torch.autograd.grad(by_kernel(*leaves)[0].square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.sum().backward()
