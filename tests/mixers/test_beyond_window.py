"""The window's own exponentials, the first token's, and a linear mechanism's weights between, behind one sum."""

import pytest
import torch
import torch.nn.functional as F

from maclaurin.models.linearised.students import Shape, Windowed, build_student

SHAPE = Shape(d_model=12, num_heads=4, num_kv_heads=2, head_dim=6, causal=True)
WINDOW = 4


def build(name):
    torch.manual_seed(0)
    student = build_student(name, SHAPE, num_features=16, window=WINDOW, one_sum=True).double()
    student.linear.decay_proj.bias.data.fill_(-1.0)
    for parameter in student.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return student


def tokens(batch, T):
    generator = torch.Generator().manual_seed(T)
    sizes = ((4, 6), (2, 6), (2, 6), (12,))
    return [torch.randn(batch, T, *size, dtype=torch.float64, generator=generator) for size in sizes]


@pytest.mark.parametrize("T", [1, 3, 4, 5, 13])
@pytest.mark.parametrize("name", ["taylor", "hedgehog"])
def test_it_is_its_formula(name, T):
    """Token by token, from the header of beyond_window.py."""
    student = build(name)
    q, k, v, x = tokens(1, T)
    linear = student.linear
    q_map, k_map = (layer(z)[0] for layer, z in ((linear.q_map, q), (linear.k_map, k)))
    decay = F.softplus(linear.decay_proj(x[0]))
    y = torch.zeros(T, 4, 6, dtype=torch.float64)
    for t in range(T):
        for head in range(4):
            group = head // 2
            sums, values = 0.0, 0.0
            for s in range(t + 1):
                score = q[0, t, head] @ k[0, s, group] / 6**0.5
                if s == 0 or s > t - WINDOW:
                    weight = score.exp()
                else:
                    a, b = q_map[t, head], k_map[s, group]
                    far = 1 + a @ b + (a @ b) ** 2 / 2
                    if name == "hedgehog":
                        far = linear.feature_map(a) @ linear.feature_map(b)
                    weight = student.log_scale[head].exp() * far * (-decay[s + WINDOW + 1 : t + 1, group].sum()).exp()
                sums, values = sums + weight, values + weight * v[0, s, group]
            y[t, head] = values / sums
    torch.testing.assert_close(student(q, k, v, x)[0][0], y)


@pytest.mark.parametrize("name", ["2mamba", "luna", "elu"])
def test_its_weights_give_its_output(name):
    student = build(name)
    q, k, v, x = tokens(2, 11)
    weights = student.mechanism.weights(q, k, student.log_decay(x))
    expected = torch.einsum("bhts,bshv->bthv", weights, v.repeat_interleave(2, 2))
    torch.testing.assert_close(student(q, k, v, x)[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("splits", [[1] * 13, [2, 3, 8], [9, 4], [4, 4, 5]])
@pytest.mark.parametrize("name", ["2mamba", "hedgehog"])
def test_states_carry_over_at_any_split(name, splits):
    student = build(name)
    q, k, v, x = tokens(2, 13)
    state, parts = None, []
    for pieces in zip(*(z.split(splits, dim=1) for z in (q, k, v, x)), strict=True):
        y, state = student(*pieces, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), student(q, k, v, x)[0])


@torch.no_grad()
@pytest.mark.parametrize("left", [False, True])
def test_padding_never_enters(left):
    """Also not as the first token; the state goes on as that of the sequence alone."""
    student = build("hedgehog")
    q, k, v, x = tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    real = slice(4, 9)
    if not left:
        mask, real = mask.flip(1), slice(0, 5)
    y, state = student(q, k, v, x, return_state=True, attention_mask=mask)
    alone, own = student(*(z[:1, real] for z in (q, k, v, x)), return_state=True)
    torch.testing.assert_close(y[:1, real], alone)
    further = tokens(2, 7)
    after, _ = student(*further, state, return_state=True)
    expected, _ = student(*(z[:1] for z in further), own, return_state=True)
    torch.testing.assert_close(after[:1], expected)


def test_gradients_are_those_of_the_weights():
    student = build("hedgehog")
    inputs = [z.requires_grad_() for z in tokens(1, 11)]
    q, k, v, x = inputs
    weights = student.mechanism.weights(q, k, student.log_decay(x))
    expected = torch.einsum("bhts,bshv->bthv", weights, v.repeat_interleave(2, 2))
    wanted = inputs + [parameter for parameter in student.parameters() if parameter.requires_grad]
    loss = [torch.autograd.grad(y.square().sum(), wanted) for y in (student(q, k, v, x)[0], expected)]
    for got, right in zip(*loss, strict=True):
        torch.testing.assert_close(got, right)


@torch.no_grad()
def test_within_the_window_it_is_softmax():
    student = build("taylor")
    q, k, v, x = tokens(2, WINDOW + 1)
    softmax = build_student("softmax", SHAPE)
    torch.testing.assert_close(student(q, k, v, x)[0], softmax(q, k, v, x)[0])


def test_far_weights_start_at_one():
    for name in ("taylor", "2mamba", "hedgehog", "elu"):
        student = build_student(name, SHAPE, num_features=16, window=WINDOW, one_sum=True)
        assert isinstance(student, Windowed)
        zero = [torch.zeros(1, 1, heads, 6, dtype=torch.float64) for heads in (4, 2)]
        far = student.mechanism.far.weights(*zero)[0, :, 0, 0] * student.log_scale.exp()
        torch.testing.assert_close(far, torch.ones(4, dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_encoders_are_refused():
    with pytest.raises(ValueError, match="a window needs a decoder"):
        build_student("2mamba", Shape(12, 4, 2, 6, causal=False), window=3, one_sum=True)
