"""The native delta rule is that of torch: every order, decay, shape, instruction set, thread count and chunk size."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native
from tests.ops.helpers import Sizes, assert_close, delta_inputs, gradients, projections
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CHANNELS = st.sampled_from((1, 3, 8, 16, 17, 33))
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 100)))
KINDS = st.sampled_from(((1, None), (1, "kv"), (1, "q"), (1, "channel"), (1, "q-channel"), (2, None), (2, "kv")))
TOKENS = ("q", "k", "v", "beta", "log_decay")


@st.composite
def calls(draw):
    """Inputs in float32, strides included, an initial state or none, and the options of delta_rule."""
    order, decay = draw(KINDS)
    sizes = Sizes(
        B=draw(st.integers(1, 2)),
        T=draw(LENGTHS),
        G=draw(st.integers(1, 2)),
        R=draw(st.integers(1, 3)),
        K=draw(CHANNELS) if order == 1 else draw(st.sampled_from((1, 3, 8, 17))),
        V=draw(CHANNELS),
        seed=draw(st.integers(0, 2**16)),
    )
    batch = delta_inputs(decay)(sizes).to(torch.float32)
    if decay is not None:
        batch.tokens["log_decay"] *= draw(st.sampled_from((0.0, 0.01, 1.0, 30.0)))
    state = None
    if draw(st.booleans()):
        heads = sizes.G * (sizes.R if decay in ("q", "q-channel") else 1)
        features = sizes.K if order == 1 else sizes.K * (sizes.K + 1) // 2
        state = ops.DeltaState(torch.rand(sizes.B, heads, features, sizes.V))
    options = {"order": order, "chunk_size": draw(st.sampled_from((1, 5, 16, 64)))}
    return strided(batch) if draw(st.booleans()) else batch, options, state


def outputs(batch, options, state):
    y, after = ops.delta_rule(**batch, **options, state=state)
    return {"y": y, "memory": after.recurrent}


@settings(max_examples=80)
@given(call=calls())
def test_outputs_states_and_gradients_are_those_of_torch(call):
    assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25)
@given(call=calls())
def test_every_instruction_set_says_the_same(isa, call):
    with native.using_isa(isa):
        assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize(("order", "decay"), [(1, "kv"), (1, "channel"), (2, "kv")])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, order, decay):
    batch = delta_inputs(decay)(Sizes(B=2, T=70, G=3, R=2, K=16, V=24)).to(torch.float32)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        leaves = batch.leaves()
        y, state = ops.delta_rule(**leaves.tokens, order=order, backend="native")
        outputs = [y, state.recurrent]
        found.append([*outputs, *torch.autograd.grad(projections(outputs), list(leaves.tokens.values()))])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("order", "decay"), [(1, "kv"), (1, "channel"), (2, "kv")])
def test_decays_of_every_size_in_one_block(isa, order, decay):
    """0 and -1e4 side by side, and -inf: nothing overflows, and what is not forgotten is exact."""
    batch = delta_inputs(decay)(Sizes(B=1, T=50, G=2, R=1, K=9, V=5)).to(torch.float32)
    a = batch.tokens["log_decay"]
    a[:, ::3], a[:, 1::7], a[:, 2::11] = 0, -1e4, -math.inf
    a[:, 4::13] = -65.0
    with native.using_isa(isa):
        assert_same_as_torch(outputs, batch, {"order": order}, None)


@pytest.mark.parametrize(("order", "decay"), [(1, "kv"), (1, "channel"), (2, "kv")])
def test_strong_decay_keeps_the_digits_of_its_gradient(order, decay):
    """The decay's gradient is a difference of sums; tokens that meet only themselves must not drown it."""
    batch = delta_inputs(decay)(Sizes(B=1, T=200, G=2, R=1, K=16, V=16)).to(torch.float32)
    batch.tokens["log_decay"] = -8.0 - torch.rand_like(batch.tokens["log_decay"])
    found = {}
    for backend, dtype in (("native", torch.float32), ("torch", torch.float64)):
        leaves = batch.to(dtype).leaves()
        y, _ = ops.delta_rule(**leaves.tokens, order=order, backend=backend)
        found[backend] = gradients(projections([y]), leaves.tokens)["log_decay"]
    assert_close(found["native"], found["torch"], 1e-4)


@pytest.mark.parametrize(("order", "decay"), [(1, None), (1, "kv"), (1, "channel"), (2, "kv")])
def test_steps_are_the_sequence(order, decay):
    """Token by token through the kernel of one token, as in decoding."""
    batch = delta_inputs(decay)(Sizes(B=2, T=20, G=2, R=2, K=9, V=7)).to(torch.float32)
    whole, end = ops.delta_rule(**batch.tokens, order=order, backend="native")
    pieces, state = [], None
    for t in range(20):
        y, state = ops.delta_rule(**{name: x[:, t : t + 1] for name, x in batch.tokens.items()}, order=order, state=state)
        pieces.append(y)
    assert_close(torch.cat(pieces, dim=1), whole, 1e-5)
    assert_close(state.recurrent, end.recurrent, 1e-5)


@pytest.mark.parametrize(("order", "decay"), [(1, None), (1, "kv"), (1, "channel"), (2, "kv")])
def test_the_operator_keeps_its_promises(order, decay):
    batch = delta_inputs(decay)(Sizes(B=1, T=7, G=1, R=2, K=4, V=3)).to(torch.float32).leaves()
    state = torch.rand(1, 1, 4 if order == 1 else 10, 3, requires_grad=True)
    tensors = [batch.tokens.get(name) for name in TOKENS]
    torch.library.opcheck(torch.ops.maclaurin.delta, (*tensors, state, 0.5, order, 16, True))


def test_orders_beyond_the_second_have_no_kernel():
    batch = delta_inputs()(Sizes(T=5)).to(torch.float32)
    with pytest.raises(ValueError, match="backend='native' needs order 1 or 2"):
        ops.delta_rule(**batch.tokens, order=3, backend="native")


def test_a_decay_per_channel_is_one_of_order_1():
    batch = delta_inputs("channel")(Sizes(T=5))
    with pytest.raises(ValueError, match=r"log_decay must have shape \(batch, time, heads\)"):
        ops.delta_rule(**batch.tokens, order=2)
