"""Tensors in, tensors out: the mechanisms, each exact in every form. `reference` states their maths."""

from maclaurin.ops import reference
from maclaurin.ops.bidirectional import bidirectional_linear, bidirectional_power, bidirectional_softmax
from maclaurin.ops.conv import short_conv
from maclaurin.ops.features import symmetric_power
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.piecewise import scalar_mlp
from maclaurin.ops.power import fold_length, power_attention
from maclaurin.ops.rotary import rotary
from maclaurin.ops.softmax import softmax_attention
from maclaurin.ops.states import ConvState, LinearState, PowerState, State, TokenState

__all__ = [
    "ConvState",
    "LinearState",
    "PowerState",
    "State",
    "TokenState",
    "bidirectional_linear",
    "bidirectional_power",
    "bidirectional_softmax",
    "fold_length",
    "linear_attention",
    "power_attention",
    "reference",
    "rotary",
    "scalar_mlp",
    "short_conv",
    "softmax_attention",
    "symmetric_power",
]
