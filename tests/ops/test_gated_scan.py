"""The gated recurrence: what it states, natively and in torch, in every shape, instruction set and thread count."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native, reference
from tests.ops.helpers import Batch, assert_close
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

natively = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")
CHANNELS = st.sampled_from((1, 3, 16, 31, 64, 65, 130))
TIMES = st.one_of(st.integers(1, 10), st.sampled_from((16, 33, 50)))


def inputs(B, T, C, size=1.0):
    shapes = {"u": C, "gates": 3 * C, "g": C}
    return Batch({name: size * torch.randn(B, T, channels) for name, channels in shapes.items()})


@st.composite
def calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    B, T, C = draw(st.integers(1, 3)), draw(TIMES), draw(CHANNELS)
    batch = inputs(B, T, C, draw(st.sampled_from((1.0, 10.0))))
    state = ops.ScanState(torch.randn(B, C)) if draw(st.booleans()) else None
    return strided(batch) if draw(st.booleans()) else batch, {}, state


def scan(inputs, options, state):
    y, after = ops.gated_scan(**inputs, **options, state=state)
    return {"y": y, "memory": after.recurrent}


@natively
@settings(max_examples=60)
@given(call=calls())
def test_the_kernel_is_that_of_torch(call):
    assert_same_as_torch(scan, *call)


@natively
@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15)
@given(call=calls())
def test_every_instruction_set_is_that_of_torch(isa, call):
    with native.using_isa(isa):
        assert_same_as_torch(scan, *call)


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=natively)])
def test_it_is_what_it_states(backend):
    torch.manual_seed(0)
    batch = inputs(2, 40, 21).all()
    y, _ = ops.gated_scan(**batch, backend=backend)
    assert_close(y, reference.gated_scan(*(x.double() for x in batch.values())), 1e-6)


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=natively)])
def test_padding_neither_forgets_nor_adds(backend):
    torch.manual_seed(0)
    batch = inputs(2, 12, 5).all()
    _, padded = ops.gated_scan(**batch, lengths=torch.tensor([7, 12]), backend=backend)
    _, alone = ops.gated_scan(**{name: x[:1, :7] for name, x in batch.items()}, backend=backend)
    assert_close(padded.recurrent[:1], alone.recurrent, 1e-6)


@natively
def test_gelu_is_exact_far_from_zero_too():
    """With everything let in and out and no past, y = gelu(g)·u: relative to the last digits, in the tail as well."""
    g = torch.linspace(-9, 9, 2001).view(1, -1, 1)
    u, gates = torch.ones_like(g), torch.cat([torch.full_like(g, size) for size in (-1e4, 1e4, 1e4)], dim=-1)
    y, _ = ops.gated_scan(u, gates, g, backend="native")
    exact = g.double() * torch.special.erfc(-g.double() / math.sqrt(2)) / 2  # torch's own gelu is 0 in the tail
    assert (y.double() - exact).abs().le(1e-5 * exact.abs()).all()


@natively
@pytest.mark.parametrize("name", ["u", "gates", "g"])
def test_nan_stays_in_its_channel_and_reaches_no_earlier_token(name):
    torch.manual_seed(0)
    batch = inputs(1, 20, 20).all()
    batch[name][0, 9, 3] = torch.nan
    y, after = ops.gated_scan(**batch, backend="native")
    assert y[0, 9, 3].isnan() and y[0, :9].isfinite().all()
    assert y[0, :, [c for c in range(20) if c != 3]].isfinite().all()
    assert after.recurrent[0, 3].isnan() == (name != "g")


@natively
def test_gates_that_are_shut_or_open_for_good():
    """σ of ±1e4 and of ±inf is 0 and 1, without NaN in the gradients of finite numbers."""
    for size in (1e4, 3e38):
        batch = {name: x.requires_grad_() for name, x in inputs(1, 9, 20).all().items()}
        gates = batch["gates"].detach().sign().mul(size).requires_grad_()
        y, after = ops.gated_scan(batch["u"], gates, batch["g"], backend="native")
        found = torch.autograd.grad(y.sum() + after.recurrent.sum(), (batch["u"], gates, batch["g"]))
        assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in found)
        assert not found[1].any()


@natively
def test_the_operator_is_one_that_torch_can_compile():
    u, gates, g = inputs(2, 5, 3).all().values()
    start = torch.randn(2, 3, requires_grad=True)
    arguments = (u.requires_grad_(), gates.requires_grad_(), g.requires_grad_(), start)
    torch.library.opcheck(torch.ops.maclaurin.gated_scan, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gates": torch.zeros(1, 4, 8)}, "gates must be"),
        ({"g": torch.zeros(1, 5, 3)}, "g must be"),
        ({"u": torch.zeros(4, 3)}, "u must have 3 dimensions"),
        ({"state": ops.ScanState(torch.zeros(1, 7))}, "state must be"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    given = inputs(1, 4, 3).all() | {"state": None} | change
    with pytest.raises(ValueError, match=words):
        ops.gated_scan(**given)
