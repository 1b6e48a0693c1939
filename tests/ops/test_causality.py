"""A token that is not a number, or overflows, leaves every output before it as it was, in every form and backend."""

import math

import pytest
import torch

from maclaurin.ops import delta_rule, linear_attention, native, power_attention, softmax_attention
from maclaurin.ops.arithmetic import running_sum
from maclaurin.ops.causality import causally

FORMS = ("parallel", "chunked", "auto")
BACKENDS = ("torch", "native") if native.available() else ("torch",)
B, T, H, K, V = 2, 70, 2, 8, 5


def drawn(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, T, H, K, generator=generator, dtype=dtype) for _ in range(2))
    return q, k, torch.randn(B, T, H, V, generator=generator, dtype=dtype), -torch.rand(B, T, H, generator=generator)


def power(q, k, v, a, **call):
    return power_attention(q, k, v, a, fold_at=20, fold_every=7, chunk_size=32, **call)


def per_channel(q, k, v, a, **call):
    return linear_attention(q.relu(), k.relu(), v, a[..., None].expand(*a.shape, K), chunk_size=32, **call)


def linear(q, k, v, a, **call):
    return linear_attention(q.relu(), k.relu(), v, a, chunk_size=32, **call)


def softmax(q, k, v, a, **call):
    return softmax_attention(q, k, v, a, chunk_size=32, **call)


def window(q, k, v, a, **call):
    call.pop("backend")
    return softmax_attention(q, k, v, window=9, chunk_size=32, **call)


def delta(q, k, v, a, **call):
    call.pop("backend")
    return delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, torch.full_like(a, 0.5), a, chunk_size=32, **call)


OPS = (power, linear, per_channel, softmax, window, delta)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_outputs_before_a_bad_token_stay(op, backend, form, value):
    given = drawn()
    clean, _ = op(*given, form=form, backend=backend)
    for bad, which in ((0, 2), (37, 0), (37, 1), (37, 2), (T - 1, 2)):
        inputs = [x.clone() for x in given]
        inputs[which][0, bad, 1, 3] = value
        y, _ = op(*inputs, form=form, backend=backend)
        torch.testing.assert_close(y[0, :bad], clean[0, :bad], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y[1], clean[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y[:, :, 0], clean[:, :, 0], rtol=1e-4, atol=1e-4)  # heads never meet


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_forms_agree_on_which_outputs_are_finite(op, form):
    """Several bad tokens, each in another row, head or channel: between them the outputs are what decoding gives."""
    q, k, v, a = drawn(seed=1)
    v[0, 20, 0, 1] = math.nan
    v[0, 45, 0, 3] = math.inf
    q[0, 35, 1] = math.nan
    v[0, 60, 1, 0] = math.nan
    k[1, 50, 1, 2] = math.nan
    y, state = op(q, k, v, a, form=form, backend="torch")
    expected, expected_state = op(q, k, v, a, form="recurrent", backend="torch")
    pairs = [(y, expected), *((state.tensors()[name], tensor) for name, tensor in expected_state.tensors().items())]
    for got, wanted in pairs:
        finite = wanted.isfinite()
        assert torch.equal(got.isfinite(), finite)
        torch.testing.assert_close(got[finite], wanted[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [(70, 45), (55, 70)])
def test_ragged_batches_too(lengths):
    q, k, v, a = drawn(seed=2)
    clean, _ = power(q, k, v, a, lengths=torch.tensor(lengths))
    k[0, 50] = math.inf
    y, _ = power(q, k, v, a, lengths=torch.tensor(lengths))
    torch.testing.assert_close(y[0, :50], clean[0, :50], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y[1], clean[1], rtol=1e-4, atol=1e-4)


def test_a_sequence_without_numbers_costs_no_more_than_a_few_calls():
    calls = []

    def op(inputs, state, lengths, return_state):
        calls.append(inputs[0].shape[1])
        q, k, v, a = inputs
        return power_attention(q, k, v, a, state=state, form="chunked")

    given = drawn()
    guarded = causally(op, form="chunked", return_state=True)
    guarded(given, None, None)
    assert calls == [T]
    for spoiled in ([0], [1], [2], [0, 1, 2], [2, 3]):
        calls.clear()
        guarded([torch.full_like(x, math.nan) if i in spoiled else x for i, x in enumerate(given)], None, None)
        assert len(calls) <= 4 and sum(calls) <= 2 * T + 2, spoiled
    calls.clear()
    inputs = [x.clone() for x in given]
    inputs[2][:, 49] = math.nan
    guarded(inputs, None, None)
    assert sum(calls) <= 5 * T


def test_running_sums_before_a_bad_token_stay():
    x = torch.randn(1, 200, 3, generator=torch.Generator().manual_seed(0))
    clean = running_sum(x)
    x[0, 130, 1] = math.inf
    sums = running_sum(x)
    torch.testing.assert_close(sums[:, :130], clean[:, :130])
    torch.testing.assert_close(sums[..., 0], clean[..., 0])
    assert sums[0, 130:, 1].isinf().all()
