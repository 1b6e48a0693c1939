"""torch's default dtype and device are for parameters: they change nothing about what a mixer computes."""

from contextlib import contextmanager

import pytest
import torch

from tests.mixers.test_laws import FORMS, build, every_mixer, inputs

DEFAULTS = (torch.float16, torch.bfloat16, torch.float64)


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
    split = x.shape[1] - 5
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
    assert len(got) == len(expected)
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == right.dtype and left.device == right.device
        assert torch.equal(left.nan_to_num(), right.nan_to_num()) and torch.equal(left.isnan(), right.isnan())


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_default_dtype_changes_nothing(name, dtype):
    mixer = build(name, dtype)
    x = inputs(mixer, 2, 14)
    expected = everything(mixer, x)
    for default in DEFAULTS:
        with default_dtype(default):
            assert_same_bits(everything(mixer, x), expected)


@every_mixer
def test_default_device_changes_nothing(name):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, 14)
    with default_device("meta"):
        got = everything(mixer, x)
    assert_same_bits(got, everything(mixer, x))


@every_mixer
@pytest.mark.parametrize("default", DEFAULTS, ids=str)
def test_a_mixer_built_under_another_default_is_one_converted_to_it(name, default):
    with default_dtype(default):
        built = build(name, default)
        x = inputs(built, 2, 14)
        got = everything(built, x)
    converted = build(name, default)
    converted.load_state_dict(built.state_dict())
    assert_same_bits(got, everything(converted, x))
