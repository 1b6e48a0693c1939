"""Queries and keys of fixed length, with a learned temperature per head."""

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.mixers.registry import mixer_entry

D, H = 24, 3
WITH_BLOCK = [name for name in maclaurin.available_mixers() if mixer_entry(name).mixer.has_block]


def build(name, **options):
    torch.manual_seed(0)
    return maclaurin.build_mixer(name, D, H, qk_norm=True, **options).double()


@pytest.mark.parametrize("name", WITH_BLOCK)
def test_states_carry_over_in_every_form(name):
    mixer, x = build(name), torch.randn(2, 13, D, dtype=torch.float64)
    expected, _ = mixer(x, form="parallel")
    for form in ("chunked", "recurrent"):
        first, state = mixer(x[:, :6], form=form)
        second, _ = mixer(x[:, 6:], state, form=form)
        torch.testing.assert_close(torch.cat([first, second], dim=1), expected, rtol=1e-7, atol=1e-9)


def test_softmax_by_hand():
    mixer, x = build("softmax", rotary="none"), torch.randn(1, 9, D, dtype=torch.float64)
    torch.nn.init.uniform_(mixer.qk_norm.q_weight)
    q, k, v = (part.unflatten(-1, (H, D // H)) for part in mixer.qkv_proj(x).chunk(3, dim=-1))
    q, k = (part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, k, v = (part.transpose(1, 2) for part in (q * mixer.qk_norm.q_weight, k, v))
    expected = mixer.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x)[0], expected)


def test_the_size_of_the_projections_has_no_influence():
    mixer, x = build("softmax"), torch.randn(1, 9, D, dtype=torch.float64)
    expected, _ = mixer(x)
    with torch.no_grad():
        mixer.qkv_proj.weight[: 2 * D] *= 100
    torch.testing.assert_close(mixer(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("order", "matters"), [(2, False), ((1, 2), True)])
def test_a_temperature_matters_beside_another_order(order, matters):
    mixer, x = build("2mamba", order=order), torch.randn(1, 9, D, dtype=torch.float64)
    before, _ = mixer(x)
    with torch.no_grad():
        mixer.qk_norm.q_weight.mul_(2)
    assert torch.allclose(mixer(x)[0], before) is not matters


def test_both_weights_learn_and_are_of_each_head():
    mixer = build("2mamba", order=(0, 1, 2), learn_order_weights=True, num_kv_heads=1)
    mixer(torch.randn(1, 9, D, dtype=torch.float64))[0].square().sum().backward()
    assert mixer.qk_norm.q_weight.grad.shape == (H, D // H) and mixer.qk_norm.k_weight.grad.shape == (1, D // H)
    assert (mixer.qk_norm.q_weight.grad != 0).all() and (mixer.qk_norm.k_weight.grad != 0).all()
