"""Gated softmax against its formula in plain PyTorch."""

import copy

import torch

from maclaurin import build_mixer
from maclaurin.ops.rotary import rotary


def plain(mixer, x, mask):
    """The default gated softmax, every operation in the dtype of x."""
    T = x.shape[1]
    parts = mixer.qkv_proj(x).split(mixer.qkv_sizes, dim=-1)
    q, k, v = (part.unflatten(-1, (-1, mixer.head_dim)) for part in parts)
    q, k = (rotary(part, torch.arange(T).expand(x.shape[:2])) for part in (q, k))
    v = v * torch.sigmoid(mixer.in_gate_proj(x))[..., None]
    score = (torch.einsum("bthk,bshk->bhts", q, k) * mixer.head_dim**-0.5).clamp(max=mixer.score_cap)
    visible = torch.ones(T, T, dtype=torch.bool).tril() & mask[:, None, None, :]
    weight = score.exp().masked_fill(~visible, 0) / visible.sum(-1, keepdim=True)
    y = mixer.out_norm(torch.einsum("bhts,bshv->bthv", weight.to(x.dtype), v))
    y = y * torch.sigmoid(mixer.out_gate_proj(x))[..., None]
    return mixer.out_proj(y.flatten(2)) * mask[..., None]


def gradients(forward, mixer, x, mask, dy):
    mixer, x = copy.deepcopy(mixer), x.clone().requires_grad_()
    leaves = {"x": x, **dict(mixer.named_parameters())}
    found = torch.autograd.grad((forward(mixer, x, mask).double() * dy).sum(), list(leaves.values()))
    return {name: gradient.double() for name, gradient in zip(leaves, found, strict=True)}


def test_gradients_in_bfloat16_lose_no_more_than_plain_pytorch():
    """On average over seeds: a norm behind a gate cancels most of its gradient, so that a single case is all rounding."""
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    lost = {}
    for seed in range(24):
        torch.manual_seed(seed)
        mixer = build_mixer("gated-softmax", 32, 2).bfloat16()
        x, dy = torch.randn(3, 2, 32).bfloat16(), torch.randn(3, 2, 32).double()
        exact = gradients(plain, copy.deepcopy(mixer).double(), x.double(), mask, dy)
        ours = gradients(lambda mixer, x, mask: mixer(x, attention_mask=mask)[0], mixer, x, mask, dy)
        theirs = gradients(plain, mixer, x, mask, dy)
        for name, right in exact.items():
            errors = [((found[name] - right).norm() / right.norm()).item() for found in (ours, theirs)]
            lost.setdefault(name, []).append(errors)
    for name, errors in lost.items():
        ours, theirs = torch.tensor(errors).mean(0).tolist()
        assert ours <= theirs, name
