"""The native backend says what the torch backend says: every shape, instruction set, thread count and chunk size."""

import math
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from maclaurin import ops
from maclaurin.ops import native, reference
from tests.ops.helpers import Batch, Sizes, assert_close, attention_inputs, gradients, projections
from tests.ops.native_helpers import BACKWARD, ISAS, assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CHANNELS = st.sampled_from((1, 3, 8, 16, 33, 64, 80, 128))
# one token, less than a group, a group, a block of keys, a chunk, several, and each one off
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 127, 128, 129, 200, 257, 300)))


@st.composite
def calls(draw, channels=CHANNELS):
    """Inputs in float32, strides included, and the options of power_attention."""
    sizes = Sizes(
        B=draw(st.integers(1, 2)),
        T=draw(LENGTHS),
        G=draw(st.integers(1, 2)),
        R=draw(st.integers(1, 3)),
        K=draw(channels),
        V=draw(channels),
        seed=draw(st.integers(0, 2**16)),
    )
    batch = attention_inputs(draw(st.sampled_from((None, "kv"))))(sizes).to(torch.float32)
    if "log_decay" in batch.tokens:
        batch.tokens["log_decay"] *= draw(st.sampled_from((0.0, 0.01, 1.0, 30.0)))
    if draw(st.booleans()):
        batch = strided(batch)
    options = {
        "normalize": draw(st.booleans()),
        "chunk_size": draw(st.sampled_from((1, 7, 64, 100, 128, 256))),
        "fold_at": draw(st.integers(1, 400)),
        "fold_every": draw(st.integers(1, 70)),
        "form": draw(st.sampled_from(("parallel", "chunked", "auto"))),
    }
    return batch, options


def power(leaves, options, state):
    y, after = ops.power_attention(**leaves, **options, state=state)
    return {"y": y} | ({} if after.recurrent is None else {"memory": after.recurrent})


def softmax(leaves, options, state):
    """In two calls, of which the second one finds the keys of the first."""
    _, state = ops.softmax_attention(**leaves, **options)
    return {"y": ops.softmax_attention(**leaves, **options, state=state)[0]}


def assert_same(batch, options, state=None, op=power):
    assert_same_as_torch(op, batch, options, state)


@settings(max_examples=50)
@given(call=calls())
def test_outputs_states_and_gradients_are_those_of_torch(call):
    assert_same(*call)


@settings(max_examples=20)
@given(call=calls(channels=st.sampled_from((1, 3, 8, 16, 33))), before=st.integers(1, 300))
def test_a_state_from_either_backend_goes_on_in_either(call, before):
    """A state and waiting tokens come in, with gradients by both, and a state goes out."""
    batch, options = call
    earlier = attention_inputs("kv" if "log_decay" in batch.tokens else None)(
        Sizes(*batch.tokens["k"].shape[:1], before, batch.tokens["k"].shape[2], 1, *_channels(batch), seed=5)
    ).to(torch.float32)
    made = [ops.power_attention(**earlier.tokens, **options, backend=backend)[1] for backend in ("native", "torch")]
    for state in made:
        assert_same(batch, options, state.detach())


def _channels(batch):
    return batch.tokens["k"].shape[3], batch.tokens["v"].shape[3]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=12)
@given(call=calls(channels=st.sampled_from((1, 3, 8, 33, 64))))
def test_every_instruction_set_says_the_same(isa, call):
    with native.using_isa(isa):
        assert_same(*call)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=12)
@given(
    sizes=st.builds(Sizes, T=LENGTHS, K=CHANNELS, V=CHANNELS, R=st.integers(1, 3)), strength=st.sampled_from((0.0, 0.1, 9.0))
)
def test_softmax_is_that_of_torch(isa, sizes, strength):
    batch = attention_inputs("kv")(sizes).to(torch.float32)
    batch.tokens["log_decay"] *= strength
    with native.using_isa(isa):
        assert_same(batch, {}, op=softmax)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("form", ["parallel", "chunked"])
@pytest.mark.parametrize(("B", "G", "R"), [(2, 3, 2), (1, 1, 1), (1, 1, 3)])
def test_threads_change_nothing(threads, form, B, G, R):
    """Each head, block of queries or part of the channels is one thread's: not a bit depends on how many there are."""
    batch = attention_inputs("kv")(Sizes(B=B, T=300, G=G, R=R, K=16, V=100)).to(torch.float32)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        leaves = batch.leaves()
        y, state = ops.power_attention(**leaves.tokens, form=form, fold_at=100, backend="native")
        outputs = [y, state.recurrent]
        found.append([*outputs, *torch.autograd.grad(projections(outputs), list(leaves.tokens.values()))])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("form", ["parallel", "chunked"])
@pytest.mark.parametrize(("B", "V"), [(0, 4), (1, 0)])
def test_nothing_in_nothing_out(form, B, V):
    q, v = torch.randn(B, 20, 2, 4, requires_grad=True), torch.randn(B, 20, 2, V, requires_grad=True)
    y, _ = ops.power_attention(q, q, v, form=form, backend="native", fold_at=10)
    y.sum().backward()
    assert y.shape == (B, 20, 2, V) and (q.grad == 0).all()


def test_python_threads_call_at_the_same_time():
    torch.set_num_threads(2)
    batch = attention_inputs("kv")(Sizes(B=2, T=200, G=2, R=1, K=16, V=16)).to(torch.float32)
    expected, _ = ops.power_attention(**batch.tokens, form="chunked", backend="native")
    wrong = []

    def work():
        for _ in range(20):
            y, _ = ops.power_attention(**batch.tokens, form="chunked", backend="native")
            if not torch.equal(y, expected):
                wrong.append(y)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_threads_of_its_own():
    """A data loader's worker is a fork of a process whose pool has run: its threads are gone, its locks must not be."""
    code = """
import os, torch
from maclaurin.ops import native
torch.set_num_threads(2)
x = torch.randn(1, 300, 2, 8)
y, _ = torch.ops.maclaurin.quadratic(x, x, x, None, 1.0, False, True, 0)
child = os.fork()
if child == 0:
    again, _ = torch.ops.maclaurin.quadratic(x, x, x, None, 1.0, False, True, 0)
    os._exit(0 if torch.equal(y, again) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", ["avx2", "portable", "sse9"])
def test_the_environment_forces_an_instruction_set(name):
    code = "from maclaurin.ops import native; print(native.isa())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MACLAURIN_ISA": name}, capture_output=True, text=True, timeout=600
    )
    if name in ISAS:
        assert done.stdout.strip() == name
    else:
        assert "MACLAURIN_ISA must be one of avx512, avx2 and portable that this CPU has" in done.stderr


def operator_calls():
    x = [torch.randn(1, 70, heads, channels, requires_grad=True) for heads, channels in ((4, 5), (2, 5), (2, 3))]
    a = (-torch.rand(1, 70, 2)).requires_grad_()
    memory = torch.rand(1, 2, 15, 4, requires_grad=True)
    yield torch.ops.maclaurin.quadratic.default, (*x, a, 0.5, False, True, 0)
    yield torch.ops.maclaurin.quadratic.default, (*x, None, 0.5, True, True, 0)
    yield torch.ops.maclaurin.chunked.default, (*x, a, memory, 0.5, True, 32, 40)
    yield torch.ops.maclaurin.chunked.default, (*x, None, None, 0.5, False, 32, 0)


@pytest.mark.parametrize("case", range(4))
def test_operators_pass_opcheck(case):
    operator, arguments = list(operator_calls())[case]
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("op", [ops.power_attention, ops.softmax_attention], ids=["power", "softmax"])
def test_whole_graphs_compile(op):
    batch = attention_inputs("kv")(Sizes(B=1, T=40, K=8, V=8)).to(torch.float32).leaves().tokens

    def loss(q, k, v, log_decay):
        y, _ = op(q, k, v, log_decay, form="chunked", return_state=False, backend="native")
        return y.square().sum()

    expected = torch.autograd.grad(loss(**batch), list(batch.values()))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(torch.autograd.grad(compiled(**batch), list(batch.values())), expected, strict=True):
        assert_close(got, wanted, BACKWARD)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_checkpointed_calls_have_the_same_gradients(form):
    leaves = attention_inputs("kv")(Sizes(T=40)).to(torch.float32).leaves().tokens

    def outputs(q, k, v, log_decay):
        return ops.power_attention(q, k, v, log_decay, form=form, return_state=False, backend="native")[0]

    expected = gradients(projections([outputs(**leaves)]), leaves)
    got = gradients(projections([checkpoint(outputs, *leaves.values(), use_reentrant=False)]), leaves)
    assert all(torch.equal(got[name], gradient) for name, gradient in expected.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    batch = attention_inputs("kv")(Sizes(T=150, K=16, V=16)).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = ops.power_attention(**batch.tokens, form="chunked", backend="native")
    assert y.dtype == dtype
    exact = reference.power_attention(*(x.double() for x in batch.tokens.values()))
    assert_close(y, exact, 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
@pytest.mark.parametrize("isa", ISAS)
def test_hostile_numbers_end_as_they_do_in_torch(isa, form):
    """Zero queries and keys, decays to nothing, scores of 1e4 and of 1e-10, a NaN that must not be hidden."""
    batch = attention_inputs("kv")(Sizes(B=1, T=300, G=1, R=1, K=8, V=8)).to(torch.float32).tokens
    changes = {
        "zero queries": ("q", slice(None, None, 3), 0.0),
        "zero keys": ("k", slice(None), 0.0),
        "total decay": ("log_decay", slice(None), -math.inf),
        "sudden decay": ("log_decay", slice(5, None, 50), -1e4),
        "large": ("q", slice(None), 1e4),
        "tiny": ("k", slice(None), 1e-10),
    }
    with native.using_isa(isa):
        for what, (name, where, value) in changes.items():
            changed = {key: x.clone() for key, x in batch.items()}
            changed[name][:, where] = value * (changed[name][:, where] if what in ("large", "tiny") else 1)
            assert_same(Batch(changed), {"form": form, "fold_at": 100})
        broken = {key: x.clone() for key, x in batch.items()}
        broken["log_decay"][:, 150] = math.nan
        y, _ = ops.power_attention(**broken, form=form, backend="native")
        assert y[:, :150].isfinite().all() and y[:, 151:].isnan().any(-1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.randn(1, 4, 1, 2, dtype=torch.float64)}, "needs float32 or less, not torch.float64"),
        ({"order": 3}, "needs order=2"),
        (
            {"order_weights": torch.ones(1)},
            r"needs order=2 or \(0, 1, 2\), or orders beside 2 whose weights may be negative, not order=2 with",
        ),
    ],
)
def test_what_is_not_covered_is_refused_by_name(changes, message):
    q = torch.randn(1, 4, 1, 2)
    with pytest.raises(ValueError, match=message):
        ops.power_attention(**{"q": q, "k": q, "v": q, **changes}, backend="native")


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_second_derivatives_are_refused_and_not_silently_zero(form):
    x = torch.randn(1, 9, 1, 4, requires_grad=True)
    y, _ = ops.power_attention(x, x, x, form=form, backend="native")
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="the native backend has no second derivatives"):
        gradient.square().sum().backward()


def test_products_are_counted():
    """Through the state, and with half of a chunk's 128 keys on average."""
    x = torch.randn(1, 512, 1, 8)
    with FlopCounterMode(display=False) as counter:
        ops.power_attention(x, x, x, form="chunked", backend="native", return_state=False)
    assert counter.get_total_flops() == 2 * 512 * (2 * 36 * 9 + 64 * 16)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent", "auto"])
def test_one_term_of_the_series_is_not_the_plain_square(form):
    """Without a division x²/2 is half of x², whatever the backend that "auto" takes."""
    q, k, v = (torch.randn(1, 40, 2, 8) for _ in range(3))
    for op in (ops.power_attention, ops.bidirectional_power):
        both = (op(q, k, v, order=order, normalize=False, form=form) for order in ((2,), 2))
        term, square = (y if op is ops.bidirectional_power else y[0] for y in both)
        torch.testing.assert_close(2 * term, square, rtol=1e-4, atol=1e-4)
