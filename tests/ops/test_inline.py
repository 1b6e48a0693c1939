"""InLine attention: what centring the weights keeps of softmax that dividing them loses, with the published numbers."""

# N tokens, K key channels, V value channels

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from maclaurin import ops
from maclaurin.ops import reference
from maclaurin.ops.arithmetic import running_sum

N, K, V = 50, 8, 5


def drawn(seed=0, count=N):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, size, generator=generator, dtype=torch.float64) for size in (K, K, V))


def one_head(*tensors):
    return [x[None, :, None] for x in tensors]


def inline_map(q_TK, k_NK, scale=None):
    """The T x N weights for any queries: values of one channel a token read them off."""
    scale = q_TK.shape[-1] ** -0.5 if scale is None else scale
    count = k_NK.shape[0]
    rows = []
    for some in q_TK.split(count):
        padded = F.pad(some, (0, 0, 0, count - len(some)))
        values = torch.eye(count, dtype=q_TK.dtype)
        rows.append(ops.bidirectional_inline(*one_head(padded, k_NK, values), scale=scale)[0, : len(some), 0])
    return torch.cat(rows)


def linear_map(q_TK, k_NK, feature):
    weight = feature(q_TK) @ feature(k_NK).T
    return weight / weight.sum(-1, keepdim=True)


def softmax_map(q_TK, k_NK):
    return (q_TK @ k_NK.T * q_TK.shape[-1] ** -0.5).softmax(-1)


def test_weights_sum_to_one_and_some_are_negative():
    q, k, _ = drawn()
    weights = inline_map(q, k)
    assert (weights.sum(-1) - 1).abs().max() < 1e-14
    assert 0.1 < (weights < 0).double().mean() < 0.25


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_linear_time_is_the_matrix(kv_heads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, N, *shape, generator=generator, dtype=torch.float64)
        for shape in ((4, K), (kv_heads, K), (kv_heads, V))
    )
    expected = reference.inline_attention(q, k, v, causal=False)
    assert (ops.bidirectional_inline(q, k, v) - expected).abs().max() < 1e-14


def test_padding_has_no_influence_on_the_means():
    q, k, v = (x[None, :, None].repeat(3, 1, 2, 1) for x in drawn())
    lengths = torch.tensor([N, 7, 0])
    got = ops.bidirectional_inline(q, k, v, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        assert (got[row, length:] == 0).all()
        if length:
            alone = ops.bidirectional_inline(*(x[row : row + 1, :length] for x in (q, k, v)))
            torch.testing.assert_close(got[row : row + 1, :length], alone, rtol=1e-12, atol=1e-12)


def test_it_is_the_first_order_expansion_of_softmax():
    """The value at q = 0 is uniform attention; the derivative there is that of softmax, exactly."""
    _, k, _ = drawn()
    zero = torch.zeros(1, K, dtype=torch.float64)
    torch.testing.assert_close(inline_map(zero, k), torch.full((1, N), 1 / N, dtype=torch.float64))
    ours = torch.autograd.functional.jacobian(lambda q: inline_map(q, k)[0], zero)
    theirs = torch.autograd.functional.jacobian(lambda q: softmax_map(q, k)[0], zero)
    assert (ours - theirs).abs().max() < 1e-15
    # and inline is linear in q: the expansion has no further terms
    (q, _, _) = drawn(seed=1)
    expansion = 1 / N + torch.einsum("nik,tk->tn", ours, q)
    torch.testing.assert_close(inline_map(q, k), expansion, rtol=1e-12, atol=1e-14)


def test_the_rest_is_of_second_order():
    """Halving all scores quarters the distance to softmax, in the limit."""
    q, k, _ = drawn()
    distances = [(softmax_map(q / 2**n, k) - inline_map(q / 2**n, k)).abs().max().item() for n in range(8)]
    ratios = [larger / smaller for larger, smaller in pairwise(distances)]
    assert all(ratio > 2 for ratio in ratios)
    assert ratios[-1] == pytest.approx(4, rel=0.02)


def test_adding_one_vector_to_all_keys_changes_nothing():
    q, k, _ = drawn()
    moved = k + torch.randn(K, dtype=torch.float64)
    torch.testing.assert_close(inline_map(q, moved), inline_map(q, k), rtol=0, atol=1e-13)
    torch.testing.assert_close(softmax_map(q, moved), softmax_map(q, k), rtol=0, atol=1e-13)
    assert (linear_map(q, moved, F.relu) - linear_map(q, k, F.relu)).abs().max() > 1e-2


def elu_plus_one(x):
    return F.elu(x) + 1


def elu_plus_one_inverse(y):
    return torch.where(y > 1, y - 1, y.clamp(max=1).log())


@pytest.mark.parametrize("feature", ["relu", "elu", "affine"])
def test_queries_that_linear_attention_confuses_are_told_apart(feature):
    """Dividing by a sum sees only the ray of φ(q): p and what has c·φ(p) for features get one map."""
    q, k, _ = drawn()
    p = q[:1].abs()
    if feature == "relu":
        phi, other = F.relu, 3 * p
    elif feature == "elu":
        phi, other = elu_plus_one, elu_plus_one_inverse(2.5 * elu_plus_one(p))
    else:
        matrix, offset = torch.randn(K, K, dtype=torch.float64), torch.randn(K, dtype=torch.float64)
        ray = torch.rand(1, K, dtype=torch.float64) + 0.1

        def phi(x):
            return F.relu(x @ matrix.T + offset)

        p, other = ((c * ray - offset) @ torch.linalg.inv(matrix).T for c in (1.0, 4.0))
    assert (p - other).norm() > 0.5
    assert (linear_map(p, k, phi) - linear_map(other, k, phi)).abs().max() < 1e-14
    assert (inline_map(p, k) - inline_map(other, k)).abs().max() > 1e-3
    assert (inline_map(phi(p), phi(k)) - inline_map(phi(other), phi(k))).abs().max() > 1e-4


def test_softmax_and_inline_are_injective_under_the_same_condition():
    """rank([K, 1]) = d + 1; a channel that is the same in all keys breaks it for both."""
    p, k, _ = drawn()
    other = p.clone()
    other[:, 2] += 1
    constant = k.clone()
    constant[:, 2] = 0.7
    for attend in (softmax_map, inline_map):
        assert (attend(p, constant) - attend(other, constant)).abs().max() < 1e-14
        assert (attend(p, k) - attend(other, k)).abs().max() > 1e-3


def test_how_far_apart_maps_are_at_least():
    """‖W(p) − W(q)‖ >= σ_min(centred keys)·(s/N)·‖p − q‖."""
    p, k, _ = drawn()
    q, _, _ = drawn(seed=1)
    smallest = torch.linalg.svdvals(k - k.mean(0)).min()
    assert smallest > 0
    apart = (inline_map(p, k) - inline_map(q, k)).norm(dim=-1)
    assert (apart >= smallest * K**-0.5 / N * (p - q).norm(dim=-1) * (1 - 1e-12)).all()


def test_with_relu_the_negative_orthant_still_collapses():
    p, k, _ = drawn()
    p = -p.abs()
    assert torch.equal(inline_map(F.relu(p), F.relu(k)), inline_map(F.relu(2 * p), F.relu(k)))


def test_with_one_channel_linear_attention_cannot_look_anywhere():
    q, k = torch.randn(2, 20, 1, dtype=torch.float64)
    linear = linear_map(q, k, torch.exp)
    assert (linear - linear[:1]).abs().max() < 1e-15
    assert (inline_map(q, k) - inline_map(q[:1], k)).abs().max() > 1e-3


def test_the_four_keys_of_the_published_figure():
    """Queries r·(.4, .71): linear attention never changes, inline follows softmax's sharpening."""
    k = torch.tensor([[0.6, 1.85], [1, 1], [1.9, 0.65], [1.8, 0.3]], dtype=torch.float64)
    q = torch.tensor([1, 1.65, 2.35, 2.9], dtype=torch.float64)[:, None] * torch.tensor([0.4, 0.71], dtype=torch.float64)
    linear = linear_map(q, k, lambda x: x)
    for row in linear:
        torch.testing.assert_close(row, torch.tensor([0.32, 0.23, 0.25, 0.19], dtype=torch.float64), rtol=0, atol=0.02)
    inline = inline_map(q, k, scale=2**-0.5)
    expected = {0: [0.31, 0.23, 0.25, 0.20], 3: [0.43, 0.20, 0.26, 0.11]}
    for row, weights in expected.items():
        torch.testing.assert_close(inline[row], torch.tensor(weights, dtype=torch.float64), rtol=0, atol=0.01)
    torch.testing.assert_close(
        softmax_map(q, k)[3], torch.tensor([0.46, 0.18, 0.23, 0.13], dtype=torch.float64), rtol=0, atol=0.01
    )


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_causal_weights_sum_to_one_and_the_first_token_sees_itself(form):
    q, k, v = drawn()
    weights, _ = ops.inline_attention(*one_head(q, k, torch.eye(N, dtype=torch.float64)), form=form)
    assert (weights[0, :, 0].sum(-1) - 1).abs().max() < 1e-13
    assert weights[0, :, 0].triu(1).abs().max() == 0
    y, _ = ops.inline_attention(*one_head(q, k, v), form=form)
    torch.testing.assert_close(y[0, 0, 0], v[0])


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_the_causal_form_is_its_recurrence(form):
    """S += k vᵀ, z += k, u += v; y_t = (s/t)·(q S − (q·z/t) u) + u/t."""
    q, k, v = drawn()
    y, state = ops.inline_attention(*one_head(q, k, v), form=form, chunk_size=16)
    S, z, u, s = torch.zeros(K, V).double(), torch.zeros(K).double(), torch.zeros(V).double(), K**-0.5
    for t in range(N):
        S, z, u = S + k[t, :, None] * v[t], z + k[t], u + v[t]
        expected = s / (t + 1) * (q[t] @ S - (q[t] @ z) / (t + 1) * u) + u / (t + 1)
        assert (y[0, t, 0] - expected).abs().max() < 1e-14
    torch.testing.assert_close(state.recurrent[0, 0], torch.cat([S, u[None]]))
    torch.testing.assert_close(state.key_sum[0, 0], z)
    assert state.count.tolist() == [N]


def test_the_last_token_sees_what_it_would_see_in_the_whole_sequence():
    q, k, v = one_head(*drawn())
    causal, _ = ops.inline_attention(q, k, v)
    torch.testing.assert_close(causal[:, -1], ops.bidirectional_inline(q, k, v)[:, -1], rtol=1e-12, atol=1e-12)


def test_a_state_of_other_sizes_is_refused():
    q, k, v = one_head(*drawn())
    _, state = ops.inline_attention(q, k, v)
    with pytest.raises(ValueError, match="state must be"):
        ops.inline_attention(q, k, v[..., :-1], state=state)
    with pytest.raises(ValueError, match="scale must be a finite number"):
        ops.inline_attention(q, k, v, scale=math.inf)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_running_sums_in_blocks(count):
    x = torch.randn(2, count, 3, 5, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(2, count, 3, 5, dtype=torch.float64)
    got, expected = running_sum(x), x.cumsum(1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    squares = [(y * y * wanted).sum() for y in (got, expected)]
    firsts = [torch.autograd.grad(square, x, create_graph=True)[0] for square in squares]
    seconds = [torch.autograd.grad(first.square().sum(), x)[0] for first in firsts]
    for result in (firsts, seconds):
        torch.testing.assert_close(*result, rtol=1e-10, atol=1e-10)


def test_long_sequences_are_the_matrix():
    """Over several blocks of the running sum and chunks of the state, with a state handed over between them."""
    q, k, v = one_head(*drawn(count=300))
    expected = reference.inline_attention(q, k, v)
    first, state = ops.inline_attention(*(x[:, :130] for x in (q, k, v)), form="chunked")
    second, _ = ops.inline_attention(*(x[:, 130:] for x in (q, k, v)), state=state, form="chunked")
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-11, atol=1e-12)
