"""Low precision while decoding: a recurrent state read in halves, and tokens of 16 bits, lose one rounding and no more."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings

from maclaurin import ops
from maclaurin.ops import native, options, reference
from maclaurin.ops.native.halves import Halves
from tests.ops.helpers import Sizes, assert_close, assert_same_state, attention_inputs, distance
from tests.ops.native_helpers import ISAS
from tests.ops.test_native_decode import steps

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

HALVES = {"state_dtype": "bfloat16"}
FOLDS = {"fold_at": 20, "fold_every": 4}
SOME = 8  # tokens


def decode(batch, state, places, **options):
    outputs = []
    for t in places:
        y, state = ops.power_attention(**batch.between(t, t + 1).tokens, state=state, **FOLDS, **options)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def bits(x):
    return x.view(torch.int32)


def test_halves_are_float32_to_the_bit():
    """The upper one is the nearest bfloat16, but for halfway cases; NaN stays one."""
    x = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int32).view(torch.float32)
    x = torch.cat([x, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 1e-45, 1.0])])
    bits(x)[-4] = 0x7FFFFFFF  # a NaN that rounding would carry into the sign
    halves = Halves.of(x[None, None, :, None], False)
    joined = halves.joined()[0, 0, :, 0]
    assert torch.equal(bits(joined)[~x.isnan()], bits(x)[~x.isnan()]) and joined[x.isnan()].isnan().all()
    upper = halves.data[0, 0].view(-1, 32)[: len(x), 0].view(torch.bfloat16).float()
    assert upper[x.isnan()].isnan().all()
    apart = x.isfinite() & (bits(x) & 0xFFFF != 0x8000)
    assert torch.equal(upper[apart], x.bfloat16().float()[apart])


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40)
@given(step=steps())
def test_every_step_is_that_of_float32_up_to_one_rounding(isa, step):
    """Where the upper halves leave too few digits the lower ones are read as well: no output is further away than half of
    the largest value, which is below 5 here. What is folded is the same to the bit."""
    batch, given, state = step
    with native.using_isa(isa), torch.no_grad():
        y, after = ops.power_attention(**batch.tokens, **given, state=state, **HALVES)
        whole, whole_after = ops.power_attention(**batch.tokens, **given, state=state)
    assert_same_state(after, whole_after, 0)
    if given["normalize"]:
        assert ((y - whole).abs() <= 2.5).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("decay", [None, "kv"])
def test_rounding_does_not_add_up_over_folds(isa, decay):
    """At every length the error is at most twice that of one rounding of the state, computed in float64."""
    batch = attention_inputs(decay)(Sizes(B=1, T=600, G=2, R=2, K=16, V=16)).to(torch.float32)
    exact = batch.to(torch.float64)
    with native.using_isa(isa), torch.no_grad():
        _, state = ops.power_attention(**batch.between(0, 200).tokens, **FOLDS)
        y, _ = decode(batch, state, range(200, 600), **HALVES)
    expected = reference.power_attention(*exact.tokens.values())
    for start in (200, 600 - SOME):
        now = slice(start, start + SOME)
        assert distance(y[:, start - 200 :][:, :SOME], expected[:, now]) <= 2 * one_rounding(exact, start) + 1e-5


def one_rounding(exact, start):
    """What bfloat16 costs: some outputs in float64, each read from a state that is rounded for it."""
    error = size = 0.0
    for t in range(start, start + SOME):
        now = exact.between(t, t + 1).tokens
        _, before = ops.power_attention(**exact.between(0, t).tokens, **FOLDS)
        y, _ = ops.power_attention(**now, state=before, **FOLDS)
        rounded = before._replaced(recurrent=before.recurrent.bfloat16().double())
        error += (ops.power_attention(**now, state=rounded, **FOLDS)[0] - y).square().sum().item()
        size += y.square().sum().item()
    return math.sqrt(error / size)


@pytest.mark.parametrize("isa", ISAS)
def test_queries_orthogonal_to_all_keys_read_all_bits(isa):
    """Their totals are what is left after cancellation: rounded halves would give outputs of any size."""
    batch = attention_inputs(None)(Sizes(B=1, T=200, G=1, R=1, K=8, V=4)).to(torch.float32)
    batch.tokens["k"][..., 0] = 1e-3 * batch.tokens["k"][..., 0]
    batch.tokens["q"][...] = 0.0
    batch.tokens["q"][..., 0] = 1.0
    with native.using_isa(isa), torch.no_grad():
        _, state = ops.power_attention(**batch.between(0, 190).tokens, **FOLDS)
        y, _ = decode(batch, state, range(190, 200), **HALVES)
        expected, _ = decode(batch, state, range(190, 200))
    assert_close(y, expected, 1e-6)


def test_a_state_in_halves_is_a_state_as_any_other():
    """Looked at, changed, copied, handed to other calls, and continued twice."""
    batch = attention_inputs("kv")(Sizes(T=80, K=8, V=8)).to(torch.float32)
    with torch.no_grad():
        _, start = ops.power_attention(**batch.between(0, 50).tokens, **FOLDS)
        _, state = decode(batch, start, range(50, 60), **HALVES)
        _, whole = decode(batch, start, range(50, 60))
        assert "recurrent" not in state.__dict__  # nobody has looked
        first, _ = decode(batch, state, range(60, 70), **HALVES)
        second, _ = decode(batch, state, range(60, 70), **HALVES)
        assert torch.equal(first, second)
        assert_same_state(copy.deepcopy(state), whole, 0)
        assert_close(decode(batch, state, range(60, 70))[0], decode(batch, whole, range(60, 70))[0], 1e-6)
        y, _ = ops.power_attention(**batch.between(60, 80).tokens, state=state, **FOLDS, **HALVES)
        assert_close(y, ops.power_attention(**batch.between(60, 80).tokens, state=whole, **FOLDS)[0], 1e-6)
        state.recurrent.zero_()
        changed, _ = decode(batch, state, [60], **HALVES)
        assert_close(changed, decode(batch, whole._replaced(recurrent=0 * whole.recurrent), [60])[0], 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("halves", [{}, HALVES], ids=["float32 state", "bfloat16 state"])
def test_tokens_of_16_bits_take_the_plain_step(dtype, halves, monkeypatch):
    """Sums in float32, rounded once; the state has the dtype of its tokens, as the general way leaves it."""
    batch = attention_inputs("kv")(Sizes(T=60, K=8, V=8)).to(dtype)
    exact = batch.to(torch.float64)
    with torch.no_grad():
        _, state = ops.power_attention(**batch.between(0, 30).tokens, **FOLDS)
        _, expected_after = decode(batch, state, range(30, 60), backend="torch")
        with monkeypatch.context() as patch:
            patch.setattr(options, "over_documents", None)
            y, after = decode(batch, state, range(30, 60), **halves)
    assert y.dtype == dtype
    truth = reference.power_attention(*exact.tokens.values())[:, 30:]
    rounded = distance(truth.to(dtype), truth)
    allowed = 2 * rounded + (2 * one_rounding(exact, 30) if halves else 0) + 1e-5
    assert distance(y, truth) <= allowed
    assert {name: x.dtype for name, x in after.tensors().items()} == {
        name: x.dtype for name, x in expected_after.tensors().items()
    }
    assert_same_state(after, expected_after, 1e-5)


def test_the_dtype_of_a_state_is_one_of_two():
    token = attention_inputs(None)(Sizes(T=1)).to(torch.float32).tokens
    with pytest.raises(ValueError, match="state_dtype must be one of"):
        ops.power_attention(**token, state_dtype="int8")
