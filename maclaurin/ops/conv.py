"""The causal short convolution: a few taps per channel over time, with the last inputs carried as its state."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import silu

from maclaurin.common.arguments import one_of
from maclaurin.ops import checks, gpu, native
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.native.conv_step import ConvInPlace
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import ConvState

CHUNK = 4096
ACTIVATIONS = ("identity", "silu")


@with_options
def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "identity",
    state: ConvState | None = None,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, ConvState | None]:
    """y_t = bias + Σ_r weight[:, r] ⊙ x_{t-(width-1)+r}: x (B,T,C), weight (C,width), bias (C,). The last tap is the token.

    activation: "silu" returns y·σ(y). The forms differ only in how many tokens are taken at a time, and natively not at all.
    """
    if isinstance(state, ConvInPlace) and x.shape[1] == 1:
        return state.step(x, weight, bias, activation), state
    call = Options.of(short_conv, options)
    call.check()
    checks.tensor("x", x, "batch, time, channels")
    checks.tensor("weight", weight, "channels, width")
    if x.shape[1] == 0:
        raise ValueError(f"x must hold at least one token, got shape {checks.shape(x)}")
    if weight.shape[0] != x.shape[2] or weight.shape[1] < 1:
        raise ValueError(f"weight must have shape ({x.shape[2]}, width), got {checks.shape(weight)}")
    if bias is not None and tuple(bias.shape) != (x.shape[2],):
        raise ValueError(f"bias must have shape ({x.shape[2]},), got {checks.shape(bias)}")
    one_of("activation", activation, ACTIVATIONS)
    checks.sound_state(state, ConvState, x)
    width = weight.shape[1]
    if state is not None and state.inputs.shape[1:] != (width - 1, x.shape[2]):
        raise ValueError(
            f"state must hold the last {width - 1} inputs of {x.shape[2]} channels, got {checks.shape(state.inputs)}"
        )
    at_once = call.form in ("auto", "parallel") or torch.compiler.is_compiling()  # a compiler would unroll the loop
    step = call.at_once(x.shape[1], CHUNK)
    natively = call.natively("short_conv", x, auto="parallel", in_triton=True)

    @without_autocast
    def dense(inputs: Inputs, state: ConvState | None, lengths: Tensor | None) -> tuple[Tensor, ConvState | None]:
        (x,) = inputs
        assert x is not None
        before = None if state is None else state.inputs.to(x.dtype)
        if natively:
            tensors: tuple[Tensor | None, ...] = (x, weight, bias, before)
            if not gpu.runs_on(x):
                tensors = tuple(None if tensor is None else tensor.float() for tensor in tensors)
            y = native.call("short_conv", *tensors, activation == "silu").to(x.dtype)
        else:
            padded = with_past(x, before, width)
            if at_once:
                y = _taps(padded, weight, bias)
            else:
                starts = range(0, x.shape[1], step)
                y = torch.cat([_taps(padded[:, start : start + step + width - 1], weight, bias) for start in starts], dim=1)
            y = silu(y) if activation == "silu" else y
        return y, ConvState(last_inputs(x, before, width - 1, lengths)) if call.return_state else None

    return call.over_documents(dense, (x,), state)


def _taps(x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor | None) -> Tensor:
    """Summed in float32 at least: one product per tap, each over the whole contiguous block."""
    given, dtype = x_BTC.dtype, torch.promote_types(x_BTC.dtype, torch.float32)
    T = x_BTC.shape[1] - weight_CW.shape[1] + 1
    x_BTC, weight_CW = x_BTC.to(dtype), weight_CW.to(dtype)
    y_BTC = x_BTC[:, :T] * weight_CW[:, 0]
    for tap in range(1, weight_CW.shape[1]):
        y_BTC = torch.addcmul(y_BTC, x_BTC[:, tap : tap + T], weight_CW[:, tap])
    return (y_BTC if bias_C is None else y_BTC + bias_C.to(dtype)).to(given)


def with_past(x: Tensor, before: Tensor | None, width: int) -> Tensor:
    """x behind the width-1 inputs before it, which are zero where nothing came before."""
    return torch.cat([x.new_zeros(x.shape[0], width - 1, x.shape[2]) if before is None else before, x], dim=1)


def last_inputs(x: Tensor, before: Tensor | None, count: int, lengths: Tensor | None) -> Tensor:
    """The last inputs of every sequence, those before the first new token included."""
    if lengths is None and not torch.compiler.is_compiling() and x.shape[1] >= count:
        return x[:, x.shape[1] - count :].clone()  # a view would keep all of the input alive
    padded = with_past(x, before, count + 1)
    if lengths is None:
        return padded[:, padded.shape[1] - count :].clone()
    index = lengths[:, None] + torch.arange(count, dtype=torch.long, device=padded.device)
    return padded.gather(1, index[..., None].expand(-1, -1, padded.shape[2]))
