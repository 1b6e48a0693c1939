"""The native scans are those of torch: every shape, instruction set and thread count."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native
from tests.ops.helpers import Batch, assert_close, gradients, projections
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CHANNELS = st.sampled_from((1, 3, 16, 31, 63, 64, 65, 128, 130))
TIMES = st.one_of(st.integers(1, 10), st.sampled_from((15, 16, 17, 32, 33, 50)))


def scan_inputs(B, T, C):
    return Batch({"x": torch.randn(B, T, C), "log_decay": -torch.randn(B, T, C).abs()})


def selective_inputs(B, T, C, N):
    dt = torch.nn.functional.softplus(torch.randn(B, T, C))
    tokens = {"x": torch.randn(B, T, C), "dt": dt, "b": torch.randn(B, T, N), "c": torch.randn(B, T, N)}
    return Batch(tokens, {"rate": 3 * torch.rand(C, N)})


@st.composite
def scan_calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    B, T, C = draw(st.integers(1, 3)), draw(TIMES), draw(CHANNELS)
    batch = scan_inputs(B, T, C)
    state = ops.ScanState(torch.randn(B, C)) if draw(st.booleans()) else None
    return strided(batch) if draw(st.booleans()) else batch, {}, state


@st.composite
def selective_calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    B, T, C, N = draw(st.integers(1, 3)), draw(TIMES), draw(CHANNELS), draw(st.sampled_from((1, 2, 7, 16, 17, 40)))
    batch = selective_inputs(B, T, C, N)
    state = ops.ScanState(torch.randn(B, C, N)) if draw(st.booleans()) else None
    return strided(batch) if draw(st.booleans()) else batch, {}, state


def scan(inputs, options, state):
    y, after = ops.linear_scan(**inputs, **options, state=state)
    return {"y": y, "memory": after.recurrent}


def selective(inputs, options, state):
    y, after = ops.selective_scan(**inputs, **options, state=state)
    return {"y": y, "memory": after.recurrent}


@settings(max_examples=60)
@given(call=scan_calls())
def test_the_recurrence_is_that_of_torch(call):
    assert_same_as_torch(scan, *call)


@settings(max_examples=60)
@given(call=selective_calls())
def test_the_selective_scan_is_that_of_torch(call):
    assert_same_as_torch(selective, *call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15)
@given(first=scan_calls(), second=selective_calls())
def test_every_instruction_set_says_the_same(isa, first, second):
    with native.using_isa(isa):
        assert_same_as_torch(scan, *first)
        assert_same_as_torch(selective, *second)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads):
    batches = [(ops.linear_scan, scan_inputs(2, 50, 200)), (ops.selective_scan, selective_inputs(2, 50, 200, 9))]
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        results = []
        for op, batch in batches:
            leaves = batch.leaves()
            y, _ = op(**leaves.all(), backend="native")
            results += [y, *torch.autograd.grad(projections([y]), list(leaves.all().values()))]
        found.append(results)
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [-1e4, -1e30, -math.inf])
def test_a_total_decay_leaves_the_token_itself(isa, value):
    x = torch.randn(2, 9, 70, requires_grad=True)
    log_decay = torch.full_like(x, value).requires_grad_()
    with native.using_isa(isa):
        y, _ = ops.linear_scan(x, log_decay, backend="native")
        dx, da = torch.autograd.grad(y.sum(), (x, log_decay))
    assert torch.equal(y, x) and torch.equal(dx, torch.ones_like(x)) and (da == 0).all()


def test_the_operators_keep_their_promises():
    x, a, start = torch.randn(2, 5, 3), -torch.rand(2, 5, 3), torch.randn(2, 3)
    for before in (None, start.requires_grad_()):
        torch.library.opcheck(torch.ops.maclaurin.linear_scan, (x.requires_grad_(), a.requires_grad_(), before))
    inputs = selective_inputs(2, 5, 3, 4).leaves().all()
    arguments = tuple(inputs[name] for name in ("x", "dt", "rate", "b", "c"))
    for before in (None, torch.randn(2, 3, 4, requires_grad=True)):
        torch.library.opcheck(torch.ops.maclaurin.selective_scan, (*arguments, before))


@pytest.mark.parametrize("kind", ["scan", "selective"])
def test_compiled_they_are_the_same(kind):
    leaves = (scan_inputs(1, 20, 24) if kind == "scan" else selective_inputs(1, 20, 24, 4)).leaves().all()
    op = ops.linear_scan if kind == "scan" else ops.selective_scan

    def loss(leaves):
        y, state = op(**leaves, backend="native")
        return y.square().sum() + state.recurrent.sum()

    expected = gradients(loss(leaves), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for name, gradient in gradients(compiled(leaves), leaves).items():
        assert_close(gradient, expected[name], 1e-6, name)


def test_what_they_do_not_cover_is_refused():
    with pytest.raises(ValueError, match="backend='native' needs float32"):
        ops.linear_scan(**scan_inputs(1, 4, 3).to(torch.float64).all(), backend="native")
    with pytest.raises(ValueError, match="backend='native' needs float32"):
        ops.selective_scan(**selective_inputs(1, 4, 3, 2).to(torch.float64).all(), backend="native")
