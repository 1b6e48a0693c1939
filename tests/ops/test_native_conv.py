"""The native short convolution is that of torch: every shape, instruction set and thread count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native
from tests.ops.helpers import Batch, assert_close, gradients, projections
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")


def inputs(B, T, C, width, bias=True):
    parameters = {"weight": torch.randn(C, width)} | ({"bias": torch.randn(C)} if bias else {})
    return Batch({"x": torch.randn(B, T, C)}, parameters)


@st.composite
def calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    B, width = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    T = draw(st.one_of(st.integers(1, 10), st.sampled_from((31, 32, 33, 64, 65, 130))))
    C = draw(st.sampled_from((1, 3, 16, 31, 64, 127, 128, 129, 300)))
    batch = inputs(B, T, C, width, bias=draw(st.booleans()))
    state = ops.ConvState(torch.randn(B, width - 1, C)) if draw(st.booleans()) else None
    options = {"activation": draw(st.sampled_from(("identity", "silu")))}
    return strided(batch) if draw(st.booleans()) else batch, options, state


def outputs(batch, options, state):
    y, after = ops.short_conv(**batch, **options, state=state)
    return {"y": y, "inputs": after.inputs}


@settings(max_examples=100)
@given(call=calls())
def test_outputs_states_and_gradients_are_those_of_torch(call):
    assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(call=calls())
def test_every_instruction_set_says_the_same(isa, call):
    with native.using_isa(isa):
        assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads):
    batch = inputs(2, 200, 300, 4)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        leaves = batch.leaves()
        y, _ = ops.short_conv(**leaves.all(), activation="silu", backend="native")
        found.append([y, *torch.autograd.grad(projections([y]), list(leaves.all().values()))])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_the_activation_is_finite_where_its_exponential_is_not(isa):
    x = torch.tensor([-3e38, -1e4, -90.0, -20.0, 0.0, 20.0, 1e4, 3e38]).view(1, 1, -1).requires_grad_()
    with native.using_isa(isa):
        y, _ = ops.short_conv(x, torch.ones(8, 1), activation="silu", backend="native")
        (dx,) = torch.autograd.grad(y.sum(), x)
    assert_close(y.detach() / 3e38, torch.nn.functional.silu(x).detach() / 3e38, 1e-6)
    assert_close(y[..., 2:6].detach(), torch.nn.functional.silu(x[..., 2:6]).detach(), 1e-6)
    assert dx.isfinite().all() and dx[0, 0, 0] == 0 and dx[0, 0, -1] == 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_the_operator_keeps_its_promises(bias, before):
    leaves = inputs(2, 6, 5, 3, bias=True).leaves().all()
    state = torch.randn(2, 2, 5, requires_grad=True) if before else None
    call = (leaves["x"], leaves["weight"], leaves["bias"] if bias else None, state, True)
    torch.library.opcheck(torch.ops.maclaurin.short_conv, call)


def test_compiled_it_is_the_same():
    leaves = inputs(1, 40, 24, 4).leaves().all()

    def loss(leaves):
        y, state = ops.short_conv(**leaves, activation="silu", backend="native")
        return y.square().sum() + state.inputs.sum()

    expected = gradients(loss(leaves), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for name, gradient in gradients(compiled(leaves), leaves).items():
        assert_close(gradient, expected[name], 1e-6, name)


def test_what_it_does_not_cover_is_refused():
    leaves = inputs(1, 4, 3, 2).to(torch.float64).all()
    with pytest.raises(ValueError, match="backend='native' needs float32"):
        ops.short_conv(**leaves, backend="native")
