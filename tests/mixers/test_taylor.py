"""Terms of the series whose orders have queries and keys of their own."""

import math

import pytest
import torch

import maclaurin


def build(**options):
    torch.manual_seed(0)
    options = {"order": (0, 1, 3), "order_dim": 4, "norm": "output", **options}
    return maclaurin.build_mixer("taylor", 24, 2, **options).double()


def test_every_order_is_a_power_of_its_own_score():
    mixer = build()
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    p = mixer.project(x)
    parts = [(q, k) for q, k in zip(p.q.split(4, -1), p.k.split(4, -1), strict=True)]
    scores = [torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(4) for q, k in parts]
    weights = (1 + scores[0] + scores[1] ** 3 / 6).tril()
    torch.testing.assert_close(mixer.mechanism.weights(p.q, p.k), weights)
    expected = mixer.finish(torch.einsum("bhts,bshv->bthv", weights, p.v), x)
    torch.testing.assert_close(mixer(x)[0], expected)


def test_weights_of_equal_tokens_depend_on_their_distance_alone():
    """A rotation of channels that belong to two orders would not be relative."""
    mixer = build()
    p = mixer.project(torch.randn(1, 1, 24, dtype=torch.float64).expand(1, 12, 24))
    weights = mixer.mechanism.weights(p.q, p.k)
    torch.testing.assert_close(weights[..., 1:, 1:], weights[..., :-1, :-1])
    assert (weights[..., -1, -1] - weights[..., -1, 0]).abs().min() > 1e-3


def test_the_state_is_the_monomials_of_every_order():
    features = 1 + 4 + math.comb(4 + 3 - 1, 3)
    assert build(rotary="none").state_nbytes(1000) == 8 * 2 * features * 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "sum"}, "order_dim needs norm='output' or 'none', got 'sum'"),
        ({"key_dim": 8}, "order_dim needs key_dim=None, got 8"),
        ({"learn_order_weights": True}, "order_dim needs learn_order_weights=False, got True"),
        ({"fold_at": 9}, "order_dim needs fold_at=None, got 9"),
        ({"order_dim": 3}, "order_dim must be even with rotary='rope', got 3"),
        ({"rotary": "selective"}, "order_dim needs rotary='none' or 'rope', got 'selective'"),
        ({"order_dim": 0}, "order_dim must be at least 1"),
        ({"order_dim": 8, "order": 20}, "order_dim=8 makes .* features, more than"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
