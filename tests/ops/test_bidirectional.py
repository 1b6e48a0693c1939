"""Attention over whole sequences against the matrix it stands for."""

import pytest
import torch

from maclaurin import ops
from maclaurin.ops.features import Kernel

B, T, H, G, K, V = 2, 17, 4, 2, 6, 5


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(B, T, heads, size, generator=generator, dtype=torch.float64) for heads, size in ((H, K), (G, K), (G, V))
    )
    return q, k, v, -torch.rand(B, T, G, generator=generator, dtype=torch.float64)


def matrix_of_decays(a_BTGC):
    """exp(a_{s+1} + … + a_t) below the diagonal, exp(a_t + … + a_{s-1}) above it."""
    result = torch.empty(B, T, T, *a_BTGC.shape[2:], dtype=torch.float64)
    for t in range(T):
        for s in range(T):
            between = a_BTGC[:, s + 1 : t + 1] if s <= t else a_BTGC[:, t:s]
            result[:, t, s] = between.sum(1).exp()
    return result


def attend(weight_BTSH, v, normalize):
    if normalize:
        weight_BTSH = weight_BTSH / weight_BTSH.sum(2, keepdim=True)
    return torch.einsum("btsh,bshv->bthv", weight_BTSH, v.repeat_interleave(H // G, 2))


def scores(q, k):
    return torch.einsum("bthk,bshk->btsh", q, k.repeat_interleave(H // G, 2)) * K**-0.5


def test_softmax_is_the_row_wise_softmax():
    q, k, v, _ = tensors()
    expected = attend(scores(q, k).exp(), v, normalize=True)
    torch.testing.assert_close(ops.bidirectional_softmax(q, k, v), expected)


@pytest.mark.parametrize("order", [1, 2, (0, 1, 2)])
@pytest.mark.parametrize("decayed", [False, True])
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent", "auto"])
def test_powers_are_their_matrix(order, decayed, form):
    q, k, v, a = tensors()
    weight = Kernel.of(order)(scores(q, k))
    if decayed:
        weight = weight * matrix_of_decays(a).repeat_interleave(H // G, 3)
    for normalize in (False, True):
        got = ops.bidirectional_power(q, k, v, a if decayed else None, order=order, normalize=normalize, form=form)
        torch.testing.assert_close(got, attend(weight, v, normalize), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent", "auto"])
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
def test_one_memory_is_the_matrix_beyond_a_segment(order):
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
