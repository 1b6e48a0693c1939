"""What every form of the Triton kernels must be, against float64 on small shapes."""

import math

import pytest
import torch

from maclaurin.ops import power_attention, reference, softmax_attention
from maclaurin.ops.backends import watching
from tests.ops.helpers import assert_close, distance
from tests.ops.interpreted.helpers import BACKWARD, FORWARD, Sizes, assert_right, direct, errors, gradients, kernels

QUICK = [
    Sizes(R=2, G=1, K=16, V=16, form="parallel", T=70),
    Sizes(K=5, V=3, normalize=False, form="parallel"),
    Sizes(decay=None, K=20, V=9, form="parallel"),
    Sizes(R=2, T=70),
    Sizes(decay=None, T=70, normalize=False),
]
SLOW = [
    Sizes(K=64, V=64, T=130, form="parallel"),
    Sizes(K=64, V=64, T=70),
    Sizes(K=33, V=150, T=66),
    Sizes(K=33, V=150, T=66, form="parallel"),
    Sizes(B=2, G=2, R=3, K=17, V=1, T=97),
    Sizes(B=2, G=2, R=3, K=17, V=1, T=97, form="parallel", decay=None),
    Sizes(K=128, V=16, T=33, form="parallel"),
]


@pytest.mark.parametrize("size", QUICK, ids=str)
def test_outputs_and_gradients_are_those_of_the_oracle(size):
    assert_right(size)


@pytest.mark.slow
@pytest.mark.parametrize("size", SLOW, ids=str)
def test_outputs_and_gradients_are_those_of_the_oracle_in_larger_shapes(size):
    assert_right(size)


@pytest.mark.parametrize(("normalize", "decay"), [(True, 0.05), pytest.param(False, None, marks=pytest.mark.slow)])
def test_states_carry_over_with_their_gradients(normalize, decay):
    """Three pieces, of which the second is a decoding step, against the torch backend in float64."""
    size = Sizes(T=45, R=2, normalize=normalize, decay=decay)
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [None if x is None else x.to(dtype).detach().requires_grad_() for x in size.draw()]
        state, outputs = None, []
        for start, end in ((0, 36), (36, 37), (37, 45)):
            pieces = [None if x is None else x[:, start:end] for x in leaves]
            options = {"chunk_size": 32, "fold_at": 10, "fold_every": 5, "normalize": normalize}
            y, state = power_attention(*pieces, state=state, form="chunked", backend=backend, **options)
            outputs.append(y)
        generator = torch.Generator().manual_seed(3)
        ends = [torch.cat(outputs, 1), state.recurrent]
        loss = sum((x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum() for x in ends)
        loss.backward()
        found.append([*(x.detach() for x in ends), state.keys, *(x.grad for x in leaves if x is not None)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, FORWARD)


def test_decoding_is_the_same_sequence():
    size = Sizes(T=26, B=2, G=2, R=2)
    inputs = size.draw()
    expected = reference.power_attention(*(x.double() for x in inputs))
    state, outputs = None, []
    with torch.no_grad():
        for start, end in [(0, 20), *((t, t + 1) for t in range(20, 26))]:
            pieces = [x[:, start:end] for x in inputs]
            y, state = power_attention(*pieces, state=state, backend="triton", fold_at=10, fold_every=4)
            outputs.append(y)
    assert_close(torch.cat(outputs, 1), expected, FORWARD)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_hostile_numbers_stay_what_they_are(form):
    """Decays of -inf and -1e4 beside small ones, a zero query, zero keys, and values of 1e8."""
    size = Sizes(T=70, form=form)
    q, k, v, a = size.draw()
    a[:, 10], a[:, 40:43] = -math.inf, -1e4
    q[:, 5] = 0
    k[:, 20:24] = 0
    v[:, 50] = 1e8
    with torch.no_grad():
        y, _ = kernels((q, k, v, a), size, return_state=False)
    expected = reference.power_attention(*(x.double() for x in (q, k, v, a)))
    for t in range(70):  # one by one, so that the large ones hide nothing
        assert_close(y[:, t], expected[:, t], 1e-5, f"token {t}")


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_gradients_stay_those_of_the_oracle_beside_hostile_numbers(form):
    """Where nothing is left of the past, and where queries and keys are zero."""
    size = Sizes(T=70, form=form)
    q, k, v, a = size.draw()
    a[:, 10], a[:, 40:43] = -math.inf, -1e4
    q[:, 5], k[:, 20:24] = 0, 0
    assert_right(size, (q, k, v, a))


def test_padding_and_packing_never_leak():
    size = Sizes(T=40, B=2)
    q, k, v, a = size.draw()
    lengths = torch.tensor([25, 40])
    with torch.no_grad():
        y, state = kernels((q, k, v, a), size, lengths=lengths, fold_at=10, fold_every=5)
        alone, state_alone = kernels([x[:1, :25] for x in (q, k, v, a)], size, fold_at=10, fold_every=5)
        packed = [torch.cat([x[0, :25], x[1]])[None] for x in (q, k, v, a)]
        z, _ = kernels(packed, size, cu_seqlens=[0, 25, 65], fold_at=10, fold_every=5)
    assert_close(y[:1, :25], alone, FORWARD)
    assert y[0, 25:].abs().max() == 0
    assert_close(z[:, :25], alone, FORWARD)
    assert_close(z[:, 25:], y[1:], FORWARD)
    assert state.lengths is not None and state_alone.recurrent is not None


@pytest.mark.parametrize("mean", [0, 10])
def test_a_mean_of_the_keys_costs_the_states_no_digits_in_bfloat16(mean):
    """Products are rounded to bfloat16. Through states of centred keys they lose at most twice what the direct form does."""
    size = Sizes(T=128, K=16, V=16, decay=0.002, dtype=torch.bfloat16)
    q, k, v, a = size.draw(1)
    k = (k.float() + mean * torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(2))).bfloat16()
    expected = reference.power_attention(q.double(), k.double(), v.double(), a.double())
    with torch.no_grad():
        through_states, by_pairs = (kernels((q, k, v, a), s, return_state=False)[0] for s in (size, direct(size)))
    lost = distance(by_pairs, expected)
    plain = distance(reference.power_attention(q, k, v, a.bfloat16()), expected)
    assert lost <= 2 * plain, f"the direct form loses {lost:.1e}, plain PyTorch {plain:.1e}"
    allowed = 2 * (lost if mean else plain)
    assert distance(through_states, expected) <= allowed, f"{distance(through_states, expected):.1e} against {lost:.1e}"


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_gradients_in_bfloat16_lose_at_most_twice_what_plain_pytorch_does(form):
    size = Sizes(T=64, K=16, V=16, decay=0.02, form=form, dtype=torch.bfloat16)
    inputs = size.draw(1)
    right = gradients(inputs, size, "oracle")
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    plain = reference.power_attention(*leaves[:3], leaves[3].bfloat16())
    dy = torch.randn(plain.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    plain.backward(dy.bfloat16())
    allowed = [2 * distance(x, y) for x, y in zip([plain, *(x.grad for x in leaves)], right, strict=True)]
    lost = [distance(x, y) for x, y in zip(gradients(inputs, size, "kernels"), right, strict=True)]
    assert all(one <= most for one, most in zip(lost, allowed, strict=True)), (lost, allowed)


@pytest.mark.parametrize("form", ["parallel", pytest.param("chunked", marks=pytest.mark.slow)])
def test_float16_is_computed_as_float32(form):
    """Scores of some hundreds, whose squares leave the range of float16: outputs and gradients are rounded once."""
    size = Sizes(T=40, K=16, V=16, form=form, dtype=torch.float16)
    q, k, v, a = size.draw()
    y, *rest = errors((20 * q, 20 * k, v, a), size)
    once = torch.finfo(torch.float16).eps
    assert y <= once and all(error <= 2 * once for error in rest), (y, rest)


@pytest.mark.parametrize(
    "options", [{"order": (1, 2), "normalize": False}, {"order": (0, 1, 2), "normalize": False}], ids=str
)
def test_lower_orders_are_added(options):
    inputs = Sizes(T=40, R=2).draw()
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [x.to(dtype).clone().requires_grad_() for x in inputs]
        y, state = power_attention(
            *leaves, backend=backend, form="chunked", chunk_size=32, fold_at=10, fold_every=7, **options
        )
        (y.double() ** 2).sum().backward()
        found.append([y.detach(), state.recurrent.detach(), *(x.grad for x in leaves)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, 4e-6)


@pytest.mark.parametrize("K", [16, 32, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)])
def test_softmax_and_decoding_at_every_key_size(K):
    """Short sequences: what matters is that channels are padded and tiled."""
    inputs = Sizes(T=20, K=K, V=8).draw()
    expected = reference.power_attention(*(x.double() for x in inputs))
    with torch.no_grad():
        _, state = power_attention(*(x[:, :19] for x in inputs), backend="triton", fold_at=10, fold_every=4)
        y, _ = power_attention(*(x[:, 19:] for x in inputs), state=state, backend="triton", fold_at=10, fold_every=4)
        z, _ = softmax_attention(*inputs, backend="triton", return_state=False, window=9)
    assert_close(y, expected[:, 19:], 2 * FORWARD)
    assert_close(z, reference.softmax_attention(*(x.double() for x in inputs), window=9), FORWARD)


def test_whole_sequences_are_two_passes():
    """Every token sees every token, with a decay in both directions; gradients go through both."""
    found = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "torch")):
        leaves = [x.to(dtype).requires_grad_() for x in Sizes(T=40).draw()]
        with watching() as choices:
            y, _ = power_attention(*leaves, causal=False, form="chunked")
        assert any(choice.backend == backend for choice in choices), choices
        (y * torch.sin(torch.arange(y.numel(), dtype=dtype)).view_as(y)).sum().backward()
        found.append([y.detach(), *(x.grad for x in leaves)])
    (y, *rest), (expected, *rights) = found
    assert_close(y, expected, FORWARD)
    for actual, right in zip(rest, rights, strict=True):
        assert_close(actual, right, BACKWARD)
