"""Filters whose taps come with the data."""

import pytest
import torch

from maclaurin.ops.local import causal_filter


def drawn(W, G=2, H=4):
    v = torch.randn(2, 7, G, 3, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(2, 7, W, H, 3, dtype=torch.float64, requires_grad=True)
    return v, taps


def filtered(v, taps_BTWHV):
    y, _ = causal_filter(v, taps_BTWHV.permute(0, 1, 3, 4, 2))
    return y


@pytest.mark.parametrize("W", [1, 2, 3])
def test_a_causal_filter_is_its_sum_in_all_derivatives(W):
    v, taps = drawn(W)
    past = torch.cat([v.new_zeros(2, W - 1, 2, 3), v], dim=1).repeat_interleave(2, dim=2)
    expected = sum(past[:, r : r + 7] * taps[:, :, r] for r in range(W))
    torch.testing.assert_close(filtered(v, taps), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(filtered, (v, taps))
    assert torch.autograd.gradgradcheck(filtered, (v, taps))


def test_a_filter_under_torch_func_is_the_same():
    v, taps = (x.detach() for x in drawn(3))
    both = torch.func.vmap(lambda v, taps: filtered(v[None], taps[None])[0])(v, taps)
    torch.testing.assert_close(both, filtered(v, taps), rtol=1e-12, atol=1e-12)
