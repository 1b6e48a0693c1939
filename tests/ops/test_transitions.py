"""States of slices that were computed apart join to that of the whole sequence, and so do their gradients."""

import pytest
import torch
import torch.nn.functional as F

from maclaurin.ops import (
    decay_transition,
    delta_rule,
    delta_transition,
    inline_attention,
    linear_attention,
    linear_scan,
    mlstm,
    power_attention,
    short_conv,
    softmax_attention,
    window_transition,
)

B, T, H, K, V = 2, 19, 2, 4, 3


def attention_inputs(*gates):
    torch.manual_seed(0)
    shapes = [(B, T, H, K), (B, T, H, K), (B, T, H, V), *gates]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


HEAD, CHANNEL = (B, T, H), (B, T, H, K)
# the inputs, the state of some tokens, and their transition
OPS = {
    "linear": (
        attention_inputs(),
        lambda q, k, v: linear_attention(q, k, v)[1],
        lambda q, k, v: decay_transition(torch.zeros_like(k[..., 0])),
    ),
    "linear per head": (
        attention_inputs(HEAD),
        lambda q, k, v, a: linear_attention(q, k, v, F.logsigmoid(a))[1],
        lambda q, k, v, a: decay_transition(F.logsigmoid(a)),
    ),
    "linear per channel": (
        attention_inputs(CHANNEL),
        lambda q, k, v, a: linear_attention(q, k, v, F.logsigmoid(a))[1],
        lambda q, k, v, a: decay_transition(F.logsigmoid(a)),
    ),
    "power": (
        attention_inputs(HEAD),
        lambda q, k, v, a: power_attention(q, k, v, F.logsigmoid(a), fold_at=1, fold_every=1)[1],
        lambda q, k, v, a: decay_transition(F.logsigmoid(a)),
    ),
    "inline": (
        attention_inputs(),
        lambda q, k, v: inline_attention(q, k, v)[1],
        lambda q, k, v: decay_transition(torch.zeros_like(k[..., 0])),
    ),
    "softmax": (
        attention_inputs(HEAD),
        lambda q, k, v, a: softmax_attention(q, k, v, F.logsigmoid(a))[1],
        lambda q, k, v, a: decay_transition(F.logsigmoid(a)),
    ),
    "softmax in a window": (
        attention_inputs(HEAD),
        lambda q, k, v, a: softmax_attention(q, k, v, F.logsigmoid(a), window=6)[1],
        lambda q, k, v, a: window_transition(k, 6),
    ),
    "scan": (
        [attention_inputs()[0], attention_inputs(CHANNEL)[3]],
        lambda x, a: linear_scan(x, F.logsigmoid(a))[1],
        lambda x, a: decay_transition(F.logsigmoid(a)),
    ),
    "mlstm": (
        attention_inputs(HEAD, HEAD),
        lambda q, k, v, i, f: mlstm(q, k, v, 3 * i, f)[1],
        lambda q, k, v, i, f: decay_transition(F.logsigmoid(f)),
    ),
    "delta": (
        attention_inputs(HEAD, HEAD),
        lambda q, k, v, b, a: delta_rule(q, F.normalize(k, dim=-1), v, b.sigmoid(), F.logsigmoid(a))[1],
        lambda q, k, v, b, a: delta_transition(F.normalize(k, dim=-1), b.sigmoid(), F.logsigmoid(a)),
    ),
    "delta of order 2": (
        attention_inputs(HEAD),
        lambda q, k, v, b: delta_rule(q, F.normalize(k, dim=-1), v, b.sigmoid(), order=2)[1],
        lambda q, k, v, b: delta_transition(F.normalize(k, dim=-1), b.sigmoid(), order=2),
    ),
}


def joined(inputs, state, transition, cuts):
    """Slice by slice, each from nothing."""
    whole = None
    for start, stop in zip([0, *cuts], [*cuts, T], strict=True):
        part = [tensor[:, start:stop] for tensor in inputs]
        own = state(*part)
        whole = own if whole is None else own.after(whole, transition(*part))
    return whole


@pytest.mark.parametrize("cuts", [(1,), (7, 8), (3, 11, 18)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_slices_join_to_the_state_and_the_gradients_of_the_whole(name, cuts):
    inputs, state, transition = OPS[name]
    expected, got = state(*inputs), joined(inputs, state, transition, cuts)
    directions = [torch.randn_like(tensor, dtype=torch.float64) for tensor in expected.tensors().values()]
    found = []
    for one in (expected, got):
        tensors = list(one.tensors().values())
        torch.testing.assert_close(tensors, list(expected.tensors().values()), rtol=1e-10, atol=1e-10)
        total = sum((tensor * direction).sum() for tensor, direction in zip(tensors, directions, strict=True))
        found.append(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_tokens_of_the_second_slice_may_be_kept_those_of_the_first_not():
    inputs = [tensor.detach() for tensor in attention_inputs(HEAD)]
    q, k, v, a = inputs
    a = F.logsigmoid(a)
    first = power_attention(q[:, :9], k[:, :9], v[:, :9], a[:, :9], fold_at=1, fold_every=1)[1]
    second = power_attention(q[:, 9:], k[:, 9:], v[:, 9:], a[:, 9:], fold_at=100)[1]
    state = second.after(first, decay_transition(a[:, 9:]))
    more = [tensor[:, :2] for tensor in (q, k, v, a)]
    whole = power_attention(q, k, v, a, fold_at=1, fold_every=1)[1]
    got, expected = (power_attention(*more, state=before)[0] for before in (state, whole))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="must hold no tokens, got 10"):
        first.after(second, decay_transition(a))
    conv = short_conv(q.flatten(2), torch.ones(H * K, 3, dtype=torch.float64))[1]
    with pytest.raises(TypeError, match="a ConvState cannot be joined"):
        conv.after(conv, a)
