"""Attention over whole sequences against the matrix it stands for."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import bidirectional, crossover, native
from maclaurin.ops.features import Kernel
from tests.ops.helpers import (
    Sizes,
    assert_close,
    assert_same_gradients,
    attention_inputs,
    distance,
    gradients,
    projections,
    sizes,
)

B, T, H, G, K, V = 2, 17, 4, 2, 6, 5
FORMS = ("parallel", "chunked", "recurrent", "auto")


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(B, T, heads, size, generator=generator, dtype=torch.float64) for heads, size in ((H, K), (G, K), (G, V))
    )
    return q, k, v, -torch.rand(B, T, G, generator=generator, dtype=torch.float64)


def matrix_of_decays(a_BTGC):
    """exp(a_{s+1} + … + a_t) below the diagonal, exp(a_t + … + a_{s-1}) above it."""
    t, s, u = torch.meshgrid(*[torch.arange(a_BTGC.shape[1])] * 3, indexing="ij")
    between_TSU = ((s < u) & (u <= t)) | ((t <= u) & (u < s))
    return torch.einsum("tsu,bu...->bts...", between_TSU.to(a_BTGC.dtype), a_BTGC).exp()


def attend(weight_BTSH, v, normalize):
    if normalize:
        weight_BTSH = weight_BTSH / weight_BTSH.sum(2, keepdim=True)
    return torch.einsum("btsh,bshv->bthv", weight_BTSH, v.repeat_interleave(weight_BTSH.shape[3] // v.shape[2], 2))


def scores(q, k):
    return torch.einsum("bthk,bshk->btsh", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)) * q.shape[3] ** -0.5


def first_order(q, k, v, log_decay=None, *, normalize=True):
    """One row at a time, without padding."""
    weight = scores(q, k)
    if log_decay is not None:
        weight = weight * matrix_of_decays(log_decay).repeat_interleave(q.shape[2] // log_decay.shape[2], 3)
    return attend(weight, v, normalize)


def test_softmax_is_the_row_wise_softmax():
    q, k, v, _ = tensors()
    expected = attend(scores(q, k).exp(), v, normalize=True)
    torch.testing.assert_close(ops.bidirectional_softmax(q, k, v), expected)


def test_a_bias_is_added_to_the_scores():
    q, k, v, _ = tensors()
    bias_HTS = torch.randn(H, T, T, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bias_HTS[:, :, 3] = -torch.inf  # a key that nobody sees
    expected = attend((scores(q, k) + bias_HTS.permute(1, 2, 0)).exp(), v, normalize=True)
    torch.testing.assert_close(ops.bidirectional_softmax(q, k, v, bias=bias_HTS), expected)
    with pytest.raises(ValueError, match="bias needs sequences of one length"):
        ops.bidirectional_softmax(q, k, v, bias=bias_HTS, lengths=torch.tensor([17, 3]))


@pytest.mark.parametrize("order", [1, 2, (0, 1, 2)])
@pytest.mark.parametrize("decayed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_powers_are_their_matrix(order, decayed, form):
    q, k, v, a = tensors()
    weight = Kernel.of(order)(scores(q, k))
    if decayed:
        weight = weight * matrix_of_decays(a).repeat_interleave(H // G, 3)
    for normalize in (False, True):
        got = ops.bidirectional_power(q, k, v, a if decayed else None, order=order, normalize=normalize, form=form)
        torch.testing.assert_close(got, attend(weight, v, normalize), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_decay_a_channel_is_its_matrix(form):
    q, k, v, a = tensors()
    a = a[..., None] * torch.linspace(0.1, 2, K, dtype=torch.float64)
    grouped = [x.repeat_interleave(H // G, 2) for x in (k, a)]
    weight = torch.einsum("bthk,bshk,btshk->btsh", q, grouped[0], matrix_of_decays(grouped[1])) * K**-0.5
    got = ops.bidirectional_linear(q, k, v, a, normalize=False, form=form)
    torch.testing.assert_close(got, attend(weight, v, normalize=False), rtol=1e-9, atol=1e-9)


def test_padding_has_no_influence():
    q, k, v, a = tensors()
    lengths = torch.tensor([9, 0])
    for x in (q, k, v):
        x[0, 9:] = torch.nan
    for op in (
        lambda q, k, v, a, **n: ops.bidirectional_softmax(q, k, v, **n),
        lambda q, k, v, a, **n: ops.bidirectional_power(q, k, v, a, order=(0, 1, 2), **n),
        lambda q, k, v, a, **n: ops.bidirectional_linear(q, k, v, a[..., None].expand(-1, -1, -1, K), **n),
    ):
        y = op(q, k, v, a, lengths=lengths)
        alone = op(*(x[:1, :9] for x in (q, k, v, a)))
        torch.testing.assert_close(y[:1, :9], alone)
        assert (y[0, 9:] == 0).all() and (y[1] == 0).all()


@pytest.mark.parametrize("order", [2, (0, 1, 2)])
def test_one_state_is_the_matrix_beyond_a_segment(order):
    """600 tokens, some of them padding: outputs and gradients of both forms agree."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 600, heads, 4, generator=generator, dtype=torch.float64) for heads in (H, G, G)]
    found = []
    for form in ("parallel", "chunked"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = ops.bidirectional_power(*leaves, order=order, form=form, lengths=torch.tensor([600, 333]))
        (y * torch.linspace(-1, 1, 600, dtype=torch.float64)[:, None, None]).sum().backward()
        found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for direct, memory in zip(*found, strict=True):
        torch.testing.assert_close(direct, memory, rtol=1e-8, atol=1e-9)


def test_weights_of_orders_are_the_same_in_every_form():
    q, k, v, _ = tensors()
    weights = torch.rand(H, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    direct, both_ways = (
        ops.bidirectional_power(q, k, v, order=(0, 1, 2), order_weights=weights, form=form)
        for form in ("parallel", "chunked")
    )
    torch.testing.assert_close(direct, both_ways)
    assert (direct - ops.bidirectional_power(q, k, v, order=(0, 1, 2))).abs().max() > 1e-3


@pytest.mark.parametrize("decay", [None, "kv", "q"])
@settings(max_examples=20)
@given(s=sizes(T=1), length=st.floats(0.2, 3), padded=st.booleans(), normalize=st.booleans(), data=st.data())
def test_first_order_is_its_matrix_on_both_sides_of_the_crossover(decay, s, length, padded, normalize, data):
    """Outputs and gradients of every form, from a fifth of the length at which `auto` changes to three times that length."""
    nearby = crossover.Line(2, 1.0)
    crossing = nearby.start + round(crossover.side(s.K, s.V))
    s = dataclasses.replace(s, T=max(1, round(length * crossing)))
    lengths = [data.draw(st.integers(0, s.T)) for _ in range(s.B)] if padded else [s.T] * s.B
    batch = attention_inputs(decay, positive=True)(s).leaves()
    leaves = batch.all()
    expected = torch.zeros(s.B, s.T, s.G * s.R, s.V, dtype=torch.float64)
    for row, n in enumerate(lengths):
        expected[row, :n] = first_order(*(x[row : row + 1, :n] for x in leaves.values()), normalize=normalize)[0]
    wanted = gradients(projections([expected]), leaves)
    for form in FORMS:
        options = {"normalize": normalize, "lengths": torch.tensor(lengths) if padded else None, "form": form}
        with mock.patch.object(crossover, "_tuned", return_value={"one state": nearby, "torch decay": nearby}):
            y = ops.bidirectional_linear(**leaves, **options)
            assert torch.equal(y, ops.bidirectional_power(**leaves, order=1, **options))
        assert_close(y, expected, 1e-10, form)
        assert_same_gradients(gradients(projections([y]), leaves), wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", [None, "kv", "q"])
def test_gradients_of_first_order_are_differences(decay, form):
    batch = attention_inputs(decay, positive=True)(Sizes(B=2, T=4, G=2, R=2, K=3, V=2)).leaves()
    *tokens, last = batch.tokens.values()
    if decay:
        last = (last.detach() - 0.1).requires_grad_()  # a log decay above 0 is refused, and differences step to both sides
    lengths = torch.tensor([4, 2])
    assert torch.autograd.gradcheck(
        lambda *leaves: ops.bidirectional_linear(*leaves, form=form, lengths=lengths), (*tokens, last)
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", [None, "kv"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weights_that_sum_to_nothing_give_nothing(dtype, decay, form):
    """Features of a relu may all be zero, here those of a query and those of all keys of a row."""
    batch = attention_inputs(decay, positive=True)(Sizes(T=9)).to(dtype)
    batch.tokens["q"][0, 3] = 0
    batch.tokens["k"][1] = 0
    leaves = batch.leaves().all()
    y = ops.bidirectional_linear(**leaves, form=form)
    assert (y[0, 3] == 0).all() and (y[1] == 0).all() and (y[0, :3] != 0).all()
    y.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves.values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", [None, "kv"])
def test_what_padding_holds_reaches_no_gradient(decay, form):
    leaves = attention_inputs(decay, positive=True)(Sizes(T=9)).leaves().all()
    lengths = torch.tensor([9, 4])
    with torch.no_grad():
        for name in ("q", "k", "v"):
            leaves[name][1, 4:] = torch.nan
    y = ops.bidirectional_linear(**leaves, form=form, lengths=lengths)
    y.sum().backward()
    for leaf in leaves.values():
        assert leaf.grad.isfinite().all() and (leaf.grad[1, 4:] == 0).all() and (leaf.grad[:, :3] != 0).any()


@pytest.mark.parametrize("T", [8, 30, 100])
@pytest.mark.parametrize("decay", [None, "kv"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_low_precision_loses_no_more_than_plain_pytorch(dtype, decay, T):
    """Outputs and gradients on the same rounded inputs: at most the error of the matrix in that dtype."""
    batch = attention_inputs(decay, positive=True)(Sizes(T=T, K=24, V=16)).to(dtype)

    def run(attention, dtype):
        leaves = batch.to(dtype).leaves().all()
        y = attention(**leaves)
        return y, gradients(projections([y]), leaves)

    exact, exact_gradients = run(first_order, torch.float64)
    plain, plain_gradients = run(first_order, dtype)
    for form in FORMS:
        y, found = run(lambda form=form, **leaves: ops.bidirectional_linear(**leaves, form=form), dtype)
        assert y.dtype == dtype
        assert distance(y, exact) <= distance(plain, exact), form
        for name, gradient in exact_gradients.items():
            assert distance(found[name], gradient) <= distance(plain_gradients[name], gradient), (form, name)


@pytest.mark.parametrize("decay", [None, "kv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_automatic_form_of_first_order_changes_at_a_length(dtype, decay, monkeypatch):
    direct = []
    through = bidirectional._pair_by_pair
    monkeypatch.setattr(bidirectional, "_pair_by_pair", lambda *call: direct.append(1) or through(*call))
    monkeypatch.setattr(crossover, "_tuned", dict)
    rival = "one state" if decay is None else "torch decay"
    if decay and dtype == torch.float32 and native.available():
        rival = "native decay"
    groups = 1 if decay else 3 / 4  # of two query heads: half of the work of a state is done once for both
    longest = crossover.longest_direct(rival, 24 * groups)
    assert longest > 1
    for T, times in ((longest, 1), (longest + 1, 0)):
        direct.clear()
        leaves = attention_inputs(decay)(Sizes(T=T, K=24, V=24)).to(dtype).all()
        ops.bidirectional_linear(**leaves)
        assert len(direct) == times
    direct.clear()
    ops.bidirectional_linear(**leaves, form="parallel")
    assert len(direct) == 1
    for form in ("chunked", "recurrent"):
        ops.bidirectional_linear(**attention_inputs(decay)(Sizes(T=3, K=24, V=24)).to(dtype).all(), form=form)
    assert len(direct) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_decay_that_grows_is_refused_in_every_form(form):
    q, k, v, a = tensors()
    with pytest.raises(ValueError, match="log_decay must be <= 0 everywhere"):
        ops.bidirectional_linear(q, k, v, -a, form=form)


@pytest.mark.parametrize("name", ["power", "linear", "softmax", "inline"])
def test_whole_sequences_are_causal_false_of_the_op_padded_or_packed(name):
    """Documents of a padded or packed batch come out as they do alone, and there is no state."""
    op = getattr(ops, f"{name}_attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, 7, 2, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
    masked, state = op(q, k, v, causal=False, attention_mask=mask)
    assert state is None
    alone = [
        op(*(x[row : row + 1, cut] for x in (q, k, v)), causal=False)[0] for row, cut in ((0, slice(7)), (1, slice(2, 6)))
    ]
    torch.testing.assert_close(masked[0], alone[0][0])
    torch.testing.assert_close(masked[1, 2:6], alone[1][0])
    assert not masked[1, [0, 1, 6]].any()
    packed = [torch.cat([x[:1], x[1:, 2:6]], dim=1) for x in (q, k, v)]
    torch.testing.assert_close(op(*packed, causal=False, cu_seqlens=[0, 7, 11])[0], torch.cat(alone, dim=1))
    # the first token of a whole sequence sees the last one, that of a causal one does not
    assert not torch.allclose(op(q, k, v)[0][:, 0], op(q, k, v, causal=False)[0][:, 0])
    _, kept = op(q, k, v)
    with pytest.raises(ValueError, match="state must be None with causal=False"):
        op(q, k, v, causal=False, state=kept)
    with pytest.raises(ValueError, match="backend must be 'auto' with causal=False, got 'torch'"):
        op(q, k, v, causal=False, backend="torch")
