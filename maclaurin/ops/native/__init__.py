"""The native backend: C++ kernels for the CPU, called through a plain C interface. `csrc/` has their code.

To add one: its struct and functions in `library.py`, its `operator` in a file beside `attention.py`.
"""

from maclaurin.ops.native import (
    attention,
    conv,
    delta,
    gated,
    inline,
    linear,
    mean_filter,
    piecewise,
    scan,
    selective,
    series,
    turn,
)
from maclaurin.ops.native.library import available, isa, refusal, using_backend, using_isa
from maclaurin.ops.native.operators import call
from maclaurin.ops.native.step import plain_step
from maclaurin.ops.native.watching import needs_gradients

__all__ = [
    "attention",
    "available",
    "call",
    "conv",
    "delta",
    "gated",
    "inline",
    "isa",
    "linear",
    "mean_filter",
    "needs_gradients",
    "piecewise",
    "plain_step",
    "refusal",
    "scan",
    "selective",
    "series",
    "turn",
    "using_backend",
    "using_isa",
]
