"""Tensors in, tensors out: the mechanisms, each exact in every form. `reference` states their maths."""

from maclaurin.ops import reference
from maclaurin.ops.backends import SlowPathWarning
from maclaurin.ops.bidirectional import bidirectional_linear, bidirectional_power, bidirectional_softmax
from maclaurin.ops.conv import short_conv
from maclaurin.ops.delta import delta_rule
from maclaurin.ops.features import symmetric_power
from maclaurin.ops.folding import fold_length
from maclaurin.ops.gated_scan import gated_scan
from maclaurin.ops.inline import InlineState, bidirectional_inline, inline_attention
from maclaurin.ops.linear import linear_attention
from maclaurin.ops.local import mean_filter
from maclaurin.ops.mlstm import mlstm
from maclaurin.ops.piecewise import scalar_mlp
from maclaurin.ops.power import power_attention
from maclaurin.ops.rotary import rotary, rotate
from maclaurin.ops.scan import linear_scan
from maclaurin.ops.selective import selective_scan
from maclaurin.ops.softmax import softmax_attention
from maclaurin.ops.states import ConvState, DeltaState, LinearState, MLSTMState, PowerState, ScanState, State, TokenState
from maclaurin.ops.transitions import decay_transition, delta_transition, window_transition

__all__ = [
    "ConvState",
    "DeltaState",
    "InlineState",
    "LinearState",
    "MLSTMState",
    "PowerState",
    "ScanState",
    "SlowPathWarning",
    "State",
    "TokenState",
    "bidirectional_inline",
    "bidirectional_linear",
    "bidirectional_power",
    "bidirectional_softmax",
    "decay_transition",
    "delta_rule",
    "delta_transition",
    "fold_length",
    "gated_scan",
    "inline_attention",
    "linear_attention",
    "linear_scan",
    "mean_filter",
    "mlstm",
    "power_attention",
    "reference",
    "rotary",
    "rotate",
    "scalar_mlp",
    "selective_scan",
    "short_conv",
    "softmax_attention",
    "symmetric_power",
    "window_transition",
]
