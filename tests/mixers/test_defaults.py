"""torch's default dtype and device are for parameters: they change nothing about what a mixer computes."""

from contextlib import contextmanager

import pytest
import torch

from tests.mixers.test_laws import FORMS, build, every_mixer, inputs


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device):
    before = torch.get_default_device()
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


def everything(mixer, x):
    """Outputs, states and gradients of every form, with a state handed over; then a few tokens without gradients."""
    found = []
    split = x.shape[1] - 2
    for form in FORMS:
        leaf = x.clone().requires_grad_()
        left, state = mixer(leaf[:, :split], form=form)
        right, end = mixer(leaf[:, split:], state, form=form)
        loss = left.float().square().sum() + right.float().square().sum()
        gradients = torch.autograd.grad(loss, [leaf, *mixer.parameters()], allow_unused=True)
        found += [left, right, *end.tensors().values(), *(gradient for gradient in gradients if gradient is not None)]
    with torch.no_grad():
        state = mixer.init_state(x.shape[0])
        for t in range(x.shape[1]):
            y, state = mixer(x[:, t : t + 1], state)
            found.append(y)
    return [*found, *state.tensors().values()]


def assert_same_bits(got, expected):
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == right.dtype and left.device == right.device
        assert left.isfinite().all() and torch.equal(left, right)


@every_mixer
def test_defaults_change_nothing(name):
    for dtype, defaults in {torch.float32: (torch.bfloat16, torch.float64), torch.bfloat16: (torch.float16,)}.items():
        mixer = build(name, dtype)
        x = inputs(mixer, 2, 11)
        expected = everything(mixer, x)
        for default in defaults:
            with default_dtype(default):
                assert_same_bits(everything(mixer, x), expected)
        with default_device("meta"):
            assert_same_bits(everything(mixer, x), expected)


@every_mixer
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16], ids=str)
def test_a_mixer_built_under_another_default_is_one_converted_to_it(name, default):
    """As loaders build models."""
    with default_dtype(default):
        built = build(name, None)
        x = inputs(built, 1, 9)
        got, _ = built(x)
    converted = build(name, default)
    converted.load_state_dict(built.state_dict())
    assert all(tensor.dtype == default and tensor.isfinite().all() for tensor in built.state_dict().values())
    assert_same_bits([got], [converted(x)[0]])
