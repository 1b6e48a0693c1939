"""Rotary positions turn pairs of channels, exactly at any length and in any dtype."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin.ops import reference, rotary, rotate
from maclaurin.ops.rotary import split_and_turned
from tests.ops.helpers import assert_close, distance

PAIRINGS = pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])


@PAIRINGS
@settings(max_examples=25)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 9),
    half=st.integers(1, 9),
    theta=st.sampled_from([100.0, 10000.0, 500000.0]),
    start=st.integers(0, 10**6),
)
def test_rotary_is_the_reference(interleaved, B, T, half, theta, start):
    x = torch.randn(B, T, 2, 2 * half, dtype=torch.float64)
    positions = start + torch.arange(B * T).view(B, T)
    expected = reference.rotary(x, positions, theta=theta, interleaved=interleaved)
    assert_close(rotary(x, positions, theta=theta, interleaved=interleaved), expected, 1e-14)
    one_row = rotary(x, positions[0], theta=theta, interleaved=interleaved)
    assert_close(one_row, reference.rotary(x, positions[:1], theta=theta, interleaved=interleaved), 1e-14)


@PAIRINGS
@settings(max_examples=25)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 130),
    heads=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    half=st.integers(1, 20),
    V=st.integers(1, 9),
    rows=st.booleans(),
)
def test_parts_that_are_turned_together_are_those_turned_alone(interleaved, B, T, heads, half, V, rows):
    """Outputs and the gradient of all that they were cut out of, in float32, which the kernels take, and in float64."""
    sizes = [heads[0] * 2 * half, heads[1] * 2 * half, heads[2] * V]
    positions = torch.randint(10**5, (B, T) if rows else (T,))
    qkv = torch.randn(B, T, sum(sizes), dtype=torch.float64)
    wanted = torch.randn_like(qkv)
    results = []
    for dtype in (torch.float64, torch.float32):
        leaf = qkv.to(dtype).requires_grad_()
        options = {"theta": 1000.0, "interleaved": interleaved}
        together = split_and_turned(leaf, heads[:2], (2 * half, V), positions, **options)
        q, k, v = (part.unflatten(-1, (n, -1)) for part, n in zip(leaf.split(sizes, -1), heads, strict=True))
        for parts in (together, (*(rotary(x, positions, **options) for x in (q, k)), v)):
            y = torch.cat([part.flatten(2) for part in parts], dim=-1)
            results.append((y, *torch.autograd.grad((y * wanted.to(dtype)).sum(), leaf)))
    for together, alone in ((results[0], results[1]), (results[2], results[3]), (results[2], results[0])):
        for got, expected in zip(together, alone, strict=True):
            assert_close(got, expected.to(got.dtype), 1e-6)


def test_second_derivatives_of_parts_that_are_turned_together():
    qkv, positions = torch.randn(1, 5, 26, requires_grad=True), torch.arange(5)

    def penalty(parts):
        (gradient,) = torch.autograd.grad(sum(part.pow(3).sum() for part in parts), qkv, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), qkv)[0]

    together = split_and_turned(qkv, (2, 1), (6, 4), positions, theta=100.0, interleaved=False)
    q, k, v = (part.unflatten(-1, (n, -1)) for part, n in zip(qkv.split([12, 6, 8], -1), (2, 1, 2), strict=True))
    alone = (*(rotary(x, positions, theta=100.0) for x in (q, k)), v)
    assert_close(penalty(together), penalty(alone), 1e-5)


@PAIRINGS
@pytest.mark.parametrize("offset", [1, 1000, 10**6])
def test_scores_depend_on_relative_positions_only(interleaved, offset):
    q, k = torch.randn(2, 1, 20, 3, 16, dtype=torch.float64)
    positions = torch.arange(20)

    def scores(positions):
        turned = (rotary(x, positions, interleaved=interleaved) for x in (q, k))
        return torch.einsum("bthk,bshk->bhts", *turned)

    assert_close(scores(positions + offset), scores(positions), 1e-8)


@PAIRINGS
def test_turning_keeps_lengths_and_position_zero(interleaved):
    x = torch.randn(2, 7, 3, 10, dtype=torch.float64)
    turned = rotary(x, torch.arange(7), interleaved=interleaved)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1), 1e-14)
    assert torch.equal(turned[:, 0], x[:, 0])


@PAIRINGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_are_exact_in_every_dtype(interleaved, dtype):
    """Around position 100000 only the result is rounded: at most twice the error of rounding the exact one."""
    x = torch.randn(1, 64, 2, 64).to(dtype)
    positions = torch.arange(100_000, 100_064)
    exact = reference.rotary(x, positions[None], interleaved=interleaved)
    y = rotary(x, positions, interleaved=interleaved)
    assert y.dtype == dtype
    assert distance(y, exact) <= 2 * distance(exact.to(dtype), exact) + 1e-7


def test_positions_stay_apart_in_bfloat16():
    """bfloat16 has 8 bits: positions rounded to it would merge 2048 of them into a third as many."""
    x = torch.ones(1, 2048, 1, 2, dtype=torch.bfloat16)
    turned = rotary(x, torch.arange(2048))
    exact = reference.rotary(x, torch.arange(2048)[None])
    assert (turned.double() - exact).abs().max() <= 2**-8


@PAIRINGS
def test_turning_back_is_the_gradient(interleaved):
    x = torch.randn(1, 5, 2, 6, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)
    positions = torch.arange(5) + 3
    (found,) = torch.autograd.grad(rotary(x, positions, interleaved=interleaved), x, grad)
    assert_close(found, rotary(grad, -positions, interleaved=interleaved), 1e-14)


@PAIRINGS
@settings(max_examples=25)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 70),
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (3, 1)]),
    half=st.integers(1, 20),
    shared=st.booleans(),
    learnt=st.booleans(),
)
def test_the_kernel_turns_as_float64_does(interleaved, B, T, groups, half, shared, learnt):
    """Angles of all sequences or of each, of every head or of some; gradients too."""
    H, G = groups
    x = torch.randn(B, T, H, 2 * half)
    angles, grad = torch.randn(1 if shared else B, T, G, half) * 5, torch.randn_like(x)

    def found(dtype):
        inputs = [x.to(dtype).requires_grad_(), angles.to(dtype).requires_grad_(learnt)]
        y = rotate(*inputs, interleaved=interleaved)
        wanted = [z for z in inputs if z.requires_grad]
        return [y.detach(), *torch.autograd.grad(y, wanted, grad.to(dtype))]

    for own, exact in zip(found(torch.float32), found(torch.float64), strict=True):
        assert_close(own.double(), exact, 1e-5)


def test_bad_positions_are_refused():
    x = torch.randn(2, 5, 2, 6)
    with pytest.raises(ValueError, match="even number of channels"):
        rotary(x[..., :5], torch.arange(5))
    with pytest.raises(ValueError, match="x must have 4 dimensions"):
        rotary(x[0], torch.arange(5))
    with pytest.raises(ValueError, match=r"positions must have shape \(5,\) or \(2, 5\)"):
        rotary(x, torch.arange(4))


@PAIRINGS
@pytest.mark.parametrize(("B", "H", "G"), [(2, 4, 4), (2, 4, 2), (3, 6, 1)])
def test_given_angles_multiply_complex_numbers(interleaved, B, H, G):
    """Each set of angles serves the query heads of its key-value head, and turning back undoes it."""
    x, angles = torch.randn(B, 7, H, 10).double(), torch.randn(B, 7, G, 5).double() * 10
    pairs = x.unflatten(-1, (5, 2)) if interleaved else x.unflatten(-1, (2, 5)).transpose(-1, -2)
    turn = torch.exp(1j * angles).repeat_interleave(H // G, dim=2)
    expected = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = rotate(x, angles, interleaved=interleaved)
    assert_close(turned, expected.flatten(-2) if interleaved else expected.transpose(-1, -2).flatten(-2), 1e-14)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1), 1e-14)
    assert_close(rotate(turned, -angles, interleaved=interleaved), x, 1e-14)


def test_angles_that_do_not_fit_are_refused():
    x = torch.randn(2, 5, 4, 6)
    for shape in ((2, 4, 4, 3), (2, 5, 3, 3), (2, 5, 4, 6), (3, 5, 4, 3)):
        with pytest.raises(ValueError, match=r"angles must match x \(2, 5, 4, 6\)"):
            rotate(x, torch.randn(shape))


@PAIRINGS
def test_fixed_angles_turn_as_learnt_ones_do_in_all_derivatives(interleaved):
    """Angles that need no gradient have a backward of their own."""
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    learnt = angles.clone().requires_grad_()
    found, expected = (rotate(x, by, interleaved=interleaved) for by in (angles, learnt))
    assert_close(found, expected, 1e-15)
    weight = torch.randn_like(expected)
    firsts = [torch.autograd.grad((y * weight).pow(2).sum(), x, create_graph=True)[0] for y in (found, expected)]
    assert_close(*firsts, 1e-14)
    assert_close(*(torch.autograd.grad(first.pow(2).sum(), x)[0] for first in firsts), 1e-14)
