"""A step of the convolution that moves the last inputs on where they are is a step of the op."""

import pytest
import torch

from maclaurin.ops import ConvState, native, short_conv
from maclaurin.ops.native.conv_step import ConvInPlace
from tests.ops.native_helpers import ISAS

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native library")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["identity", "silu"])
@pytest.mark.parametrize(
    ("B", "C", "width", "bias"), [(1, 16, 2, True), (5, 37, 4, False), (3, 130, 3, True), (2, 5, 1, True)]
)
def test_steps_in_place_are_those_of_the_op(isa, activation, B, C, width, bias):
    torch.manual_seed(C)
    weight, bias = torch.randn(C, width), torch.randn(C) if bias else None
    state = ConvState(torch.randn(B, width - 1, C))
    kept = ConvInPlace(state.inputs.clone())
    with native.using_isa(isa):
        for _ in range(width + 2):
            x = torch.randn(B, 1, C + 3)[..., 3:]  # a part of a wider projection
            wide = [None if one is None else one.double() for one in (x, weight, bias)]
            expected, _ = short_conv(*wide, activation=activation, state=ConvState(state.inputs.double()))
            _, state = short_conv(x, weight, bias, activation=activation, state=state)
            y, after = short_conv(x, weight, bias, activation=activation, state=kept)
            assert after is kept
            assert torch.equal(kept.inputs, state.inputs)
            torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_a_sequence_does_not_depend_on_those_beside_it(isa):
    weight, x, inputs = torch.randn(40, 4), torch.randn(6, 1, 40), torch.randn(6, 3, 40)
    with native.using_isa(isa):
        together = ConvInPlace(inputs.clone()).step(x, weight, None, "silu")
        for row in range(6):
            alone = ConvInPlace(inputs[row : row + 1].clone()).step(x[row : row + 1], weight, None, "silu")
            assert torch.equal(alone, together[row : row + 1])


def test_what_does_not_fit_is_refused():
    x, weight, kept = torch.zeros(2, 1, 8), torch.zeros(8, 3), ConvInPlace(torch.zeros(2, 2, 8))
    calls = [(x[:1], weight, None), (x, weight[:, :2], None), (x, weight, torch.zeros(7)), (x.double(), weight, None)]
    for call in calls:
        with pytest.raises(ValueError, match="a step in place needs float32 tensors"):
            kept.step(*call, "identity")
