"""Tensors in, tensors out: the mechanisms, each exact in every form. `reference` states their maths."""

from maclaurin.ops import reference
from maclaurin.ops.bidirectional import bidirectional_linear, bidirectional_power, bidirectional_softmax
from maclaurin.ops.conv import short_conv
from maclaurin.ops.features import symmetric_power
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.mlstm import mlstm
from maclaurin.ops.power import fold_length, power_attention
from maclaurin.ops.rotary import rotary
from maclaurin.ops.softmax import softmax_attention
from maclaurin.ops.states import ConvState, LinearState, MLSTMState, PowerState, State, TokenState

__all__ = [
    "ConvState",
    "LinearState",
    "MLSTMState",
    "PowerState",
    "State",
    "TokenState",
    "bidirectional_linear",
    "bidirectional_power",
    "bidirectional_softmax",
    "fold_length",
    "linear_attention",
    "mlstm",
    "power_attention",
    "reference",
    "rotary",
    "short_conv",
    "softmax_attention",
    "symmetric_power",
]
