"""InLine attention in the kernel: what torch computes, in every shape, instruction set and thread count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native, reference
from tests.ops.helpers import Batch, assert_close
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")
CHANNELS = st.sampled_from((1, 3, 16, 17, 31, 64))
TIMES = st.one_of(st.integers(1, 10), st.sampled_from((31, 32, 33, 65, 100)))


def inputs(B, T, H, G, K, V):
    shapes = {"q": (B, T, H, K), "k": (B, T, G, K), "v": (B, T, G, V)}
    return Batch({name: torch.randn(shape) for name, shape in shapes.items()})


@st.composite
def calls(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    G = draw(st.integers(1, 3))
    batch = inputs(draw(st.integers(1, 3)), draw(TIMES), G * draw(st.integers(1, 3)), G, draw(CHANNELS), draw(CHANNELS))
    options = {"form": draw(st.sampled_from(("auto", "chunked", "recurrent"))), "chunk_size": draw(st.sampled_from((7, 64)))}
    return strided(batch) if draw(st.booleans()) else batch, options


def inline(inputs, options, state):
    y, after = ops.inline_attention(**inputs, **options, state=state)
    return {"y": y, "memory": after.recurrent, "keys": after.key_sum}


@settings(max_examples=60)
@given(call=calls())
def test_the_kernel_is_that_of_torch(call):
    assert_same_as_torch(inline, *call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(call=calls())
def test_every_instruction_set_is_that_of_torch(isa, call):
    with native.using_isa(isa):
        assert_same_as_torch(inline, *call)


def test_it_is_the_matrix_it_stands_for():
    torch.manual_seed(0)
    batch = inputs(2, 90, 4, 2, 24, 19).all()
    y, _ = ops.inline_attention(**batch, backend="native")
    assert_close(y, reference.inline_attention(*(x.double() for x in batch.values())), 1e-6)


def test_threads_change_no_number():
    torch.manual_seed(0)
    batch, before = inputs(2, 70, 4, 2, 24, 19).all(), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            leaves = {name: x.detach().requires_grad_() for name, x in batch.items()}
            y, state = ops.inline_attention(**leaves, backend="native")
            results.append([y, state.recurrent, *torch.autograd.grad(y.square().sum(), list(leaves.values()))])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_bad_number_does_not_reach_the_past(name):
    torch.manual_seed(0)
    batch = inputs(1, 80, 2, 2, 8, 9).all()
    clean, _ = ops.inline_attention(**batch, backend="native")
    batch[name][:, 45] = torch.inf
    y, _ = ops.inline_attention(**batch, backend="native")
    assert_close(y[:, :45], clean[:, :45], 1e-6)
    assert y[:, 46:].isnan().any()


def test_a_long_sequence_keeps_its_digits():
    """Weights of 1/t over many tokens, with values far from zero: no worse than twice what torch loses, or float32 has."""
    torch.manual_seed(0)
    batch = inputs(1, 8192, 1, 1, 16, 8).all()
    batch["v"] += 3
    exact, _ = ops.inline_attention(**{name: x.double() for name, x in batch.items()})
    plain, _ = ops.inline_attention(**batch, backend="torch")
    y, _ = ops.inline_attention(**batch, backend="native")
    assert (y - exact).norm() <= 2 * (plain - exact).norm() + 1e-6 * exact.norm()
