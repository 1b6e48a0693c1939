"""Orders up to 2 natively, the whole series in one kernel and others as a sum of two: what the torch backend says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maclaurin
from maclaurin import ops
from maclaurin.ops import native
from maclaurin.ops.backends import watching
from tests.ops.helpers import Sizes, assert_close, attention_inputs
from tests.ops.native_helpers import assert_same_as_torch, strided

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

ORDERS = ((1, 2), (0, 1, 2), (0, 2), (2,))


@st.composite
def calls(draw):
    """Scores above 0: sums of others may be too small for any precision. Without a division, some of either sign."""
    orders, weighted, normalize = draw(st.sampled_from(ORDERS)), draw(st.booleans()), draw(st.booleans())
    if 1 not in orders or not weighted:
        # other sums are averages of values, which are guarded in torch
        normalize = normalize and (orders == (1, 2) or (orders == (0, 1, 2) and not weighted))
    sizes = Sizes(
        B=draw(st.integers(1, 2)),
        T=draw(st.one_of(st.integers(1, 40), st.sampled_from((64, 129, 300)))),
        G=draw(st.integers(1, 2)),
        R=draw(st.integers(1, 3)),
        K=draw(st.sampled_from((1, 3, 8, 16, 33))),
        V=draw(st.sampled_from((1, 8, 16, 33))),
        seed=draw(st.integers(0, 2**16)),
    )
    decay = draw(st.sampled_from((None, "kv", "q")))
    inputs = attention_inputs(decay, positive=normalize, orders=len(orders) if weighted else 0)
    batch = inputs(sizes).to(torch.float32)
    options = {
        "order": orders,
        "normalize": normalize,
        "chunk_size": draw(st.sampled_from((1, 7, 64, 256))),
        "fold_at": draw(st.integers(1, 400)),
        "fold_every": draw(st.integers(1, 70)),
        "form": draw(st.sampled_from(("parallel", "chunked", "auto"))),
    }
    return inputs, sizes, strided(batch) if draw(st.booleans()) else batch, options


def power(leaves, options, state):
    y, after = ops.power_attention(**leaves, **options, state=state)
    return {"y": y} | ({} if after.recurrent is None else {"recurrent": after.recurrent})


@settings(max_examples=40)
@given(call=calls())
def test_outputs_states_and_gradients_are_those_of_torch(call):
    *_, batch, options = call
    assert_same_as_torch(power, batch, options)


@settings(max_examples=25)
@given(call=calls(), before=st.integers(1, 300))
def test_a_state_from_either_backend_goes_on_in_either(call, before):
    inputs, sizes, batch, options = call
    earlier = inputs(Sizes(sizes.B, before, sizes.G, sizes.R, sizes.K, sizes.V, seed=5)).to(torch.float32)
    given = {**earlier.tokens, **batch.parameters}
    for backend in ("native", "torch"):
        _, state = ops.power_attention(**given, **options, backend=backend)
        assert_same_as_torch(power, batch, options, state.detach())


@pytest.mark.parametrize(("order", "weighted"), [((1, 2), True), ((0, 1, 2), True), ((0, 1, 2), False)])
def test_token_by_token_natively(order, weighted):
    batch = attention_inputs("kv", positive=True, orders=len(order) * weighted)(Sizes(B=2, T=23, G=2, R=1, K=5, V=4))
    options = {"order": order, "fold_at": 9, "fold_every": 4}
    expected, _ = ops.power_attention(**batch.all(), **options, form="parallel")
    y, _ = ops.power_attention(**batch.to(torch.float32).all(), **options, form="recurrent", backend="native")
    assert_close(y, expected, 1e-5)


@pytest.mark.parametrize(("order", "weighted"), [((1, 2), True), ((0, 1, 2), True), ((0, 1, 2), False)])
def test_padding_and_documents_natively(order, weighted):
    inputs = attention_inputs("kv", positive=True, orders=len(order) * weighted)
    batch = inputs(Sizes(B=2, T=50, G=2, R=1, K=5, V=4)).to(torch.float32)
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[0, :13], mask[1, 30:] = 0, 0
    options = {"order": order, "fold_at": 9, "fold_every": 4, "backend": "native"}
    y, state = ops.power_attention(**batch.all(), **options, attention_mask=mask)
    for row, real in ((0, slice(13, 50)), (1, slice(0, 30))):
        alone = {name: x[row : row + 1, real] for name, x in batch.tokens.items()}
        expected, after = ops.power_attention(**alone, **batch.parameters, **options)
        assert_close(y[row : row + 1, real], expected, 1e-5)
        assert_close(state.select([row]).recurrent, after.recurrent, 1e-5)


def test_nan_never_reaches_the_past():
    batch = attention_inputs("kv", positive=True, orders=2)(Sizes(B=1, T=60, G=1, R=1, K=4, V=4)).to(torch.float32)
    batch.tokens["k"][:, 41] = torch.nan
    for form in ("parallel", "chunked"):
        y, _ = ops.power_attention(**batch.all(), order=(1, 2), form=form, backend="native")
        assert y[:, :41].isfinite().all() and y[:, 41:].isnan().all()


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_outputs_of_the_series_are_averages_at_any_scale(form):
    """Scores of thousands that cancel: what a state has no digits of is not divided by."""
    torch.manual_seed(0)
    q, k = (1e4 * torch.randn(1, 200, 2, 8) for _ in range(2))
    v = torch.rand(1, 200, 2, 4)
    y, _ = ops.power_attention(
        q, k, v, order=(0, 1, 2), form=form, fold_at=16, fold_every=8, chunk_size=16, backend="native"
    )
    assert y.min() >= -1e-5 and y.max() <= 1 + 1e-5


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({"order": (1, 2), "learn_order_weights": True}, "native"),
        ({"order": (0, 1, 2), "learn_order_weights": True}, "native"),
        ({"order": (0, 1, 2)}, "native"),
        ({"order": (0, 2)}, "torch"),
        ({"order": (0, 1, 2, 3), "learn_order_weights": True}, "torch"),
    ],
)
def test_auto_takes_the_kernels_where_outputs_are_no_averages_without_a_guard(options, backend):
    mixer = maclaurin.build_mixer("2mamba", 16, 2, fold_at=4, **options)
    with watching() as choices:
        _, state = mixer(torch.randn(1, 9, 16))
        mixer(torch.randn(1, 1, 16), state=state)
    assert [choice.backend for choice in choices if choice.op == "power_attention"] == [backend] * 2
