"""What surrounds a mechanism is chosen apart from it: convolution, skip and gate, the same for all."""

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.mixers.base import Zeros
from maclaurin.mixers.registry import mixer_entry

D, H = 24, 3
WITH_BLOCK = [name for name in maclaurin.available_mixers() if mixer_entry(name).mixer.has_block]
OTHERS = [name for name in maclaurin.available_mixers() if name not in WITH_BLOCK]


def build(name, **options):
    return maclaurin.build_mixer(name, D, H, **options).double()


def parts(mixer):
    """Taps of the convolution, whether there is a skip, whether there is a gate."""
    taps = 0 if mixer.conv is None else mixer.conv.kernel_size[0]
    return taps, mixer.skip is not None, mixer.gate_proj is not None


@pytest.mark.parametrize("name", WITH_BLOCK)
def test_a_block_is_the_same_around_every_mechanism(name):
    own_gate = mixer_entry(name).mixer.own_gate
    assert parts(build(name, block="gated")) == (4, True, not own_gate)
    assert parts(build(name, block="llama")) == (0, False, False)
    assert parts(build(name, block="gated", conv_width=3, skip=False)) == (3, False, not own_gate)


@pytest.mark.parametrize("name", WITH_BLOCK)
def test_states_carry_over_in_every_form_of_the_gated_block(name):
    mixer, x = build(name, block="gated", shared_keys=True, activation="silu-v"), torch.randn(2, 13, D, dtype=torch.float64)
    expected, _ = mixer(x, form="parallel")
    for form in ("chunked", "recurrent"):
        first, state = mixer(x[:, :6], form=form)
        second, _ = mixer(x[:, 6:], state, form=form)
        torch.testing.assert_close(torch.cat([first, second], dim=1), expected, rtol=1e-7, atol=1e-9)
    assert state.nbytes == mixer.state_of(6, Zeros(2, "meta", torch.float64)).nbytes


@pytest.mark.parametrize("name", WITH_BLOCK)
def test_skip_and_gate_have_gradients(name):
    mixer = build(name, block="gated")
    mixer(torch.randn(1, 7, D, dtype=torch.float64))[0].square().sum().backward()
    for parameter in (mixer.skip, None if mixer.gate_proj is None else mixer.gate_proj.weight):
        assert parameter is None or parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", OTHERS)
def test_layers_without_queries_keys_and_values_refuse_a_block(name):
    with pytest.raises(ValueError, match=f"mixer '{name}' has no option 'block' \\(it is a block of its own\\)"):
        build(name, block="gated")


def test_an_unknown_block_is_refused():
    with pytest.raises(ValueError, match="block must be one of 'llama', 'gated', got 'gate'"):
        build("softmax", block="gate")


def test_softmax_in_the_gated_block_by_hand():
    mixer, x = build("softmax", block="gated", rotary="none"), torch.randn(1, 9, D, dtype=torch.float64)
    qkv = F.conv1d(F.pad(mixer.qkv_proj(x).mT, (3, 0)), mixer.conv.weight, mixer.conv.bias, groups=3 * D).mT
    q, k, v = (part.unflatten(-1, (H, D // H)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True) + v * mixer.skip[:, None]
    expected = mixer.out_proj(y.transpose(1, 2).flatten(2) * F.silu(mixer.gate_proj(x)))
    torch.testing.assert_close(mixer(x)[0], expected)


@pytest.mark.parametrize("name", ["2mamba", "gated-delta"])
@pytest.mark.parametrize("keys", [True, 2])
def test_shared_keys_are_those_of_a_mixer_whose_heads_project_alike(name, keys):
    """True is one for all heads; with 2 (grouped value attention) half of the heads have the first, half the second."""
    shared, alike = (
        maclaurin.build_mixer(name, D, 4, conv_width=0, **options).double() for options in ({"shared_keys": keys}, {})
    )
    weights = dict(shared.state_dict())
    q, k, v = weights["qkv_proj.weight"].split(shared.qkv_sizes)
    q, k = (part.unflatten(0, (int(keys), -1)).repeat_interleave(4 // keys, 0).flatten(0, 1) for part in (q, k))
    alike.load_state_dict({**weights, "qkv_proj.weight": torch.cat([q, k, v])})
    x = torch.randn(1, 9, D, dtype=torch.float64)
    torch.testing.assert_close(shared(x)[0], alike(x)[0])
    with pytest.raises(ValueError, match="shared_keys must divide the 4 key-value heads, got 3"):
        maclaurin.build_mixer(name, D, 4, shared_keys=3)


def test_a_sum_can_be_followed_by_a_norm():
    both, x = build("2mamba", norm="sum-output"), torch.randn(1, 9, D, dtype=torch.float64)
    plain = build("2mamba")
    plain.load_state_dict({name: value for name, value in both.state_dict().items() if name in plain.state_dict()})
    plain.out_proj = torch.nn.Identity()
    torch.testing.assert_close(both(x)[0], both.out_proj(F.rms_norm(plain(x)[0], (D,), eps=both.out_norm.eps)))


def test_a_bias_of_the_decay_is_refused_where_there_is_none():
    assert build("2mamba", decay_bias=True).decay_proj.bias is not None
    with pytest.raises(ValueError, match="decay_bias=True needs decay='softplus' or 'forget', got 'none'"):
        build("softmax", decay_bias=True)


def test_2mamba_gated_is_2mamba_in_the_gated_block():
    named, in_block = build("2mamba-gated"), build("2mamba", block="gated")
    in_block.load_state_dict(named.state_dict())
    x = torch.randn(1, 5, D, dtype=torch.float64)
    torch.testing.assert_close(named(x)[0], in_block(x)[0])
