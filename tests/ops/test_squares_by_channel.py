"""Second order behind a decay per channel: the square of what first order weighs, in every form."""

import pytest
import torch

from maclaurin import ops
from maclaurin.ops.arithmetic import repeat_heads, safe_divide
from maclaurin.ops.squares_by_channel import squares_by_channel
from tests.ops.helpers import Sizes, assert_close, attention_inputs, gradients

FORMS = ("parallel", "chunked", "recurrent")
SIZES = Sizes(B=2, T=23, G=2, R=2, K=5, V=3)


def oracle(q, k, v, log_decay, normalize=True):
    H = q.shape[2]
    k, v, a = (repeat_heads(x, H) for x in (k, v, log_decay))
    sums = a.cumsum(1)
    between = (sums[:, :, None] - sums[:, None]).permute(0, 3, 1, 2, 4).clamp(max=0).exp()  # (B,H,T,S,K)
    score = torch.einsum("bthk,bshk,bhtsk->bhts", q, k, between) * q.shape[-1] ** -0.5
    weight = score.square().tril()
    if normalize:
        weight = safe_divide(weight, weight.sum(-1, keepdim=True))
    return torch.einsum("bhts,bshv->bthv", weight, v)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients_are_those_of_the_formula(form, normalize):
    inputs = attention_inputs("channel")(SIZES).leaves().tokens
    y, _ = squares_by_channel(**inputs, form=form, normalize=normalize)
    expected = oracle(**inputs, normalize=normalize)
    assert_close(y, expected, 1e-9)
    got, right = (gradients(x.square().sum(), inputs) for x in (y, expected))
    for name, gradient in right.items():
        assert_close(got[name], gradient, 1e-7, name)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_is_handed_over_at_any_split(form):
    tokens = attention_inputs("channel")(SIZES).tokens
    expected = oracle(**tokens)
    for split in (1, 11, 22):
        first, state = squares_by_channel(**{name: x[:, :split] for name, x in tokens.items()}, form=form)
        second, _ = squares_by_channel(**{name: x[:, split:] for name, x in tokens.items()}, state=state, form=form)
        assert_close(torch.cat([first, second], dim=1), expected, 1e-9)


def test_equal_decays_are_one_decay_of_twice_their_size():
    tokens = attention_inputs("kv")(SIZES).tokens
    expected, _ = ops.power_attention(**tokens)
    per_channel = (tokens.pop("log_decay") / 2)[..., None].expand_as(tokens["k"])
    assert_close(squares_by_channel(**tokens, log_decay=per_channel)[0], expected, 1e-9)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_what_is_rounding_alone_is_no_average(form):
    """Keys at a right angle to all queries: their weights are zero but for rounding, and so are outputs, not of any size."""
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    q, k = (1e3 * torch.randn(1, 300, 1, 8, generator=generator) @ part for part in (basis[:8], basis[8:]))
    v, a = torch.randn(1, 300, 1, 4, generator=generator), torch.zeros(1, 300, 1, 16)
    y, state = squares_by_channel(q, k, v, a, form=form)
    assert y.abs().max() <= v.abs().max()
    again, _ = squares_by_channel(q, k, v, a, state=state, form=form)
    assert again.abs().max() <= v.abs().max()


def test_a_decay_to_nothing_is_a_start():
    tokens = attention_inputs("channel")(SIZES).tokens
    tokens["log_decay"][:, 9] = -torch.inf
    y, _ = squares_by_channel(**tokens)
    tokens["log_decay"][:, 9] = 0
    assert_close(y[:, 9:], oracle(**{name: x[:, 9:] for name, x in tokens.items()}), 1e-9)
