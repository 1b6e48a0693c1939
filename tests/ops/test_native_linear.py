"""Native first-order attention is that of torch: every shape, decay, instruction set, thread count and chunk size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native
from tests.ops.helpers import Sizes, assert_close, attention_inputs, gradients, projections
from tests.ops.native_helpers import ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CHANNELS = st.sampled_from((1, 3, 8, 16, 17, 33, 64))
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 100)))
DECAYS = st.sampled_from((None, "kv", "q", "channel", "q-channel"))


@st.composite
def calls(draw, channels=CHANNELS):
    """Inputs in float32, strides included, an initial state or none, and the options of linear_attention."""
    sizes = Sizes(
        B=draw(st.integers(1, 2)),
        T=draw(LENGTHS),
        G=draw(st.integers(1, 2)),
        R=draw(st.integers(1, 3)),
        K=draw(channels),
        V=draw(channels),
        seed=draw(st.integers(0, 2**16)),
    )
    decay, normalize = draw(DECAYS), draw(st.booleans())
    batch = attention_inputs(decay, positive=normalize)(sizes).to(torch.float32)
    if decay is not None:
        batch.tokens["log_decay"] *= draw(st.sampled_from((0.0, 0.01, 1.0, 30.0)))
    options = {"normalize": normalize, "chunk_size": draw(st.sampled_from((1, 5, 16, 64)))}
    state = None
    if draw(st.booleans()):
        heads = sizes.G * (sizes.R if decay in ("q", "q-channel") else 1)
        memory = torch.rand(sizes.B, heads, sizes.K, sizes.V + normalize)
        if decay in ("channel", "q-channel"):
            state = ops.LinearState(memory)
        else:
            empty = [torch.zeros(sizes.B, 0, heads, channels) for channels in (sizes.K, sizes.V)]
            state = ops.PowerState(*empty, None, None, memory)
    return strided(batch) if draw(st.booleans()) else batch, options, state


def outputs(batch, options, state):
    y, after = ops.linear_attention(**batch, **options, state=state)
    return {"y": y, "memory": after.recurrent}


@settings(max_examples=150)
@given(call=calls())
def test_outputs_states_and_gradients_are_those_of_torch(call):
    assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40)
@given(call=calls())
def test_every_instruction_set_says_the_same(isa, call):
    with native.using_isa(isa):
        assert_same_as_torch(outputs, *call)


@pytest.mark.parametrize("decay", ["kv", "channel"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, decay):
    batch = attention_inputs(decay)(Sizes(B=2, T=90, G=3, R=2, K=16, V=24)).to(torch.float32)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        leaves = batch.leaves()
        y, state = ops.linear_attention(**leaves.tokens, normalize=False, backend="native")
        outputs = [y, state.recurrent]
        found.append([*outputs, *torch.autograd.grad(projections(outputs), list(leaves.tokens.values()))])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("decay", ["kv", "channel"])
def test_decays_of_every_size_in_one_block(isa, decay):
    """0 and -1e4 side by side, and -inf: nothing overflows, and what is not forgotten is exact."""
    batch = attention_inputs(decay, positive=True)(Sizes(B=1, T=50, G=2, R=1, K=9, V=5)).to(torch.float32)
    a = batch.tokens["log_decay"]
    a[:, ::3], a[:, 1::7], a[:, 2::11] = 0, -1e4, -float("inf")
    a[:, 4::13] = -65.0
    with native.using_isa(isa):
        assert_same_as_torch(outputs, batch, {"normalize": True}, None)


def test_strong_decay_keeps_the_digits_of_its_gradient():
    """The decay's gradient is a difference of sums; tokens that meet only themselves must not drown it."""
    batch = attention_inputs("kv")(Sizes(B=1, T=300, G=2, R=1, K=16, V=16)).to(torch.float32)
    batch.tokens["log_decay"] = -8.0 - torch.rand_like(batch.tokens["log_decay"])
    found = {}
    for backend, dtype in (("native", torch.float32), ("torch", torch.float64)):
        leaves = batch.to(dtype).leaves()
        y, _ = ops.linear_attention(**leaves.tokens, normalize=False, backend=backend)
        found[backend] = gradients(projections([y]), leaves.tokens)["log_decay"]
    assert_close(found["native"], found["torch"], 1e-4)


@pytest.mark.parametrize("decay", [None, "kv", "channel"])
def test_a_sum_of_zero_gives_zero(decay):
    batch = attention_inputs(decay)(Sizes(T=20)).to(torch.float32)
    batch.tokens["q"][:, 3:9] = 0
    leaves = batch.leaves()
    y, _ = ops.linear_attention(**leaves.tokens, backend="native")
    assert (y[:, 3:9] == 0).all()
    assert all(x.isfinite().all() for x in gradients(projections([y]), leaves.tokens).values())


@pytest.mark.parametrize("decay", [None, "kv", "channel"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_operator_keeps_its_promises(decay, normalize):
    batch = attention_inputs(decay, positive=True)(Sizes(B=1, T=7, G=1, R=2, K=4, V=3)).to(torch.float32).leaves()
    tensors = [*batch.tokens.values(), *([None] if decay is None else [])]
    memory = torch.rand(1, 1, 4, 3 + normalize, requires_grad=True)
    torch.library.opcheck(torch.ops.maclaurin.linear, (*tensors, memory, 0.5, 1.0, normalize, 64, True))
    torch.library.opcheck(torch.ops.maclaurin.linear, (*tensors, None, 0.5, 1.0, normalize, 64, False))


@pytest.mark.parametrize("decay", ["kv", "channel"])
def test_compiled_it_is_the_same(decay):
    batch = attention_inputs(decay)(Sizes(B=1, T=40, G=2, R=1, K=8, V=8)).to(torch.float32).leaves()

    def loss(tokens):
        y, state = ops.linear_attention(**tokens, normalize=False, backend="native")
        return y.square().sum() + state.recurrent.sum()

    expected = gradients(loss(batch.tokens), batch.tokens)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for name, gradient in gradients(compiled(batch.tokens), batch.tokens).items():
        assert_close(gradient, expected[name], 1e-6, name)


@pytest.mark.parametrize("decay", ["kv", "channel"])
def test_what_it_does_not_cover_is_refused(decay):
    batch = attention_inputs(decay)(Sizes())
    with pytest.raises(ValueError, match="backend='native' needs float32"):
        ops.linear_attention(**batch.tokens, backend="native")
