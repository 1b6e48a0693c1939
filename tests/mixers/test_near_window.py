"""A window of softmax beside another mechanism. That its forms and states agree is in test_laws.py."""

import pytest
import torch

import maclaurin
from maclaurin.mixers.weights import of_mixer
from maclaurin.ops.arithmetic import repeat_heads

OPTIONS = {"near_window": 3, "num_kv_heads": 2, "decay": "forget", "rotary": "rope"}


def build(name, **options):
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer(name, 16, 4, **OPTIONS, **options).double()
    torch.nn.init.normal_(mixer.near.gate)
    return mixer


@torch.no_grad()
@pytest.mark.parametrize("norm", ["each", "joint"])
@pytest.mark.parametrize("name", ["2mamba", "taylor", "hedgehog"])
def test_it_is_its_formula(name, norm):
    mixer = build(name, near_norm=norm)
    p = mixer.project(torch.randn(1, 9, 16, dtype=torch.float64))
    q, k = p.q[0], repeat_heads(p.k, 4)[0]
    score = torch.einsum("thk,shk->hts", q, k) / 2
    far = score.square() if name == "2mamba" else 1 + score + score.square() / 2
    if name == "hedgehog":
        far = torch.einsum("thk,shk->hts", mixer.feature_map(q[None])[0], mixer.feature_map(k[None])[0])
    sums = repeat_heads(p.log_decay, 4)[0].T.cumsum(-1)
    far = (far * (sums[:, :, None] - sums[:, None]).exp()).tril()
    near = score.exp().tril().triu(-2)
    share = 1 / (1 + (-mixer.near.gate).exp())[:, None, None]
    if norm == "each":
        near, far = near / near.sum(-1, keepdim=True), far / far.sum(-1, keepdim=True)
    weights = share * near + (1 - share) * far
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(of_mixer(mixer, p)[0], weights)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["each", "joint"])
@pytest.mark.parametrize("name", ["2mamba", "hedgehog"])
def test_its_weights_give_its_output(name, norm):
    mixer = build(name, near_norm=norm)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    p = mixer.project(x)
    heads = torch.einsum("bhts,bshv->bthv", of_mixer(mixer, p), repeat_heads(p.v, 4))
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj(heads.flatten(2)))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("softmax", {"near_window": 3}, "near_window needs a linear mechanism"),
        ("2mamba", {"near_window": 0}, "near_window must be at least 1"),
        ("2mamba", {"near_window": 3, "near_norm": "both"}, "near_norm must be one of 'each', 'joint', got 'both'"),
        ("2mamba", {"near_window": 3, "near_norm": "joint", "norm": "output"}, "needs a far mechanism that divides"),
        ("hedgehog", {"near_window": 3, "causal": False}, "needs a decoder"),
    ],
)
def test_impossible_windows_are_refused(name, options, says):
    with pytest.raises(ValueError, match=says):
        maclaurin.build_mixer(name, 16, 4, **options)
