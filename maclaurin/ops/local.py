"""Depthwise filters whose taps come with the data: one filter per token (causally), or one per sequence or image.

Values have G heads and taps H: a key-value head serves the filters of H/G heads. Sums are float32 at least.
"""

# B batch, T time, G key-value heads, H heads, I inputs, C hidden numbers, V value channels, W taps, E = W·V

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, pad

from maclaurin.ops import native
from maclaurin.ops.arithmetic import repeat_heads, running_sum, without_autocast
from maclaurin.ops.backends import reason_for_torch
from maclaurin.ops.conv import last_inputs, with_past
from maclaurin.ops.states import ConvState
from maclaurin.ops.tokens import without_padding
from maclaurin.ops.transforms import is_transformed, twice_differentiable


def causal_filter(
    v_BTGV: Tensor, taps_BTHVW: Tensor, *, state: ConvState | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, ConvState]:
    """y_t = Σ_r taps_t[…, r] ⊙ v_{t-(W-1)+r}: the last tap is the token. The state is the last values."""
    G, W = v_BTGV.shape[2], taps_BTHVW.shape[-1]
    values = v_BTGV.flatten(2)
    before = None if state is None else state.inputs.to(values.dtype)
    v_BSHV = _repeated(with_past(values, before, W).unflatten(2, (G, -1)), taps_BTHVW)
    y = _slid(v_BSHV, taps_BTHVW.to(v_BSHV.dtype))
    return y.to(v_BTGV.dtype), ConvState(last_inputs(values, before, W - 1, lengths))


def mean_filter(
    x_BTHI: Tensor, v_BTHV: Tensor, first_HIC: Tensor, first_bias_HC: Tensor, second_HCE: Tensor, second_bias_HE: Tensor
) -> Tensor:
    """`causal_filter` by taps from the mean so far, gelu(mean(x)·first + first_bias)·second + second_bias, where E = W·V
    has one tap behind the other. float32 at least."""
    return mean_filter_and_sum(x_BTHI, v_BTHV, first_HIC, first_bias_HC, second_HCE, second_bias_HE)[0]


@without_autocast
def mean_filter_and_sum(x_BTHI: Tensor, v_BTHV: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and the sum (B,H,I) of all x."""
    dtype = torch.promote_types(x_BTHI.dtype, torch.float32)
    x_BTHI, v_BTHV, *wide_weights = (part.to(dtype) for part in (x_BTHI, v_BTHV, *weights))
    if reason_for_torch("auto", x_BTHI, dtype) is None:
        y, total = native.call("mean_filter", x_BTHI, v_BTHV, *wide_weights)
        return y, total
    first_HIC, first_bias_HC, second_HCE, second_bias_HE = wide_weights
    sums_BTHI = running_sum(x_BTHI)
    count_T11 = torch.arange(1, x_BTHI.shape[1] + 1, dtype=dtype, device=x_BTHI.device)[:, None, None]
    hidden_BTHC = gelu(torch.einsum("bthi,hic->bthc", sums_BTHI / count_T11, first_HIC) + first_bias_HC)
    taps_BTHE = torch.einsum("bthc,hce->bthe", hidden_BTHC, second_HCE) + second_bias_HE
    y, _ = causal_filter(v_BTHV, taps_BTHE.unflatten(-1, (-1, v_BTHV.shape[-1])).transpose(-1, -2))
    return y, sums_BTHI[:, -1].clone()


def centred_filter(v_BTGV: Tensor, taps_B1HVW: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """y_t = Σ_r taps[…, r] ⊙ v_{t-W//2+r}, with nothing before the first token and behind the last real one."""
    T, W = v_BTGV.shape[1], taps_B1HVW.shape[-1]
    v_BSHV = pad(without_padding(v_BTGV, lengths), (0, 0, 0, 0, W // 2, (W - 1) // 2))
    v_BSHV = _repeated(v_BSHV, taps_B1HVW)
    return _sum_of_taps(_windows(v_BSHV, T, W), taps_B1HVW).to(v_BTGV.dtype)


def grid_filter(v_BTGV: Tensor, taps_B1HVW: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """Tokens are the h·w places of a grid, row by row; taps are a square, row by row, its middle at the token."""
    h, w = grid
    side = round(taps_B1HVW.shape[-1] ** 0.5)
    edge = side // 2
    rows_BYXGV = v_BTGV.unflatten(1, (h, w))
    rows_BYXGV = pad(rows_BYXGV, (0, 0, 0, 0, edge, edge, edge, edge))
    shifted = [rows_BYXGV[:, i : i + h, j : j + w].flatten(1, 2) for i in range(side) for j in range(side)]
    return _sum_of_taps([_repeated(v_BTGV, taps_B1HVW) for v_BTGV in shifted], taps_B1HVW).to(v_BTGV.dtype)


def _repeated(v_BTGV: Tensor, taps_BTHVW: Tensor) -> Tensor:
    v_BTHV = repeat_heads(v_BTGV, taps_BTHVW.shape[2])
    return v_BTHV.to(torch.promote_types(v_BTHV.dtype, torch.float32))


def _windows(v_BSHV: Tensor, T: int, W: int) -> list[Tensor]:
    return [v_BSHV[:, r : r + T] for r in range(W)]


def _slid(v_BSHV: Tensor, taps_BTHVW: Tensor) -> Tensor:
    """Σ_r taps_t[…, r] ⊙ v_{t+r} for the S = T+W-1 values."""
    if torch.compiler.is_compiling() or is_transformed():
        return _in_operators(v_BSHV, taps_BTHVW)[0]
    y: Tensor = _Slid.apply(v_BSHV, taps_BTHVW)
    return y


def _in_operators(v_BSHV: Tensor, taps_BTHVW: Tensor) -> tuple[Tensor]:
    return (_sum_of_taps(_windows(v_BSHV, taps_BTHVW.shape[1], taps_BTHVW.shape[-1]), taps_BTHVW),)


class _Slid(torch.autograd.Function):
    """One pass per tap forward and two backward: no gradient of a slice, which is as long as the sequence, and no copies."""

    @staticmethod
    def forward(ctx: Any, v_BSHV: Tensor, taps_BTHVW: Tensor) -> Tensor:
        ctx.save_for_backward(v_BSHV, taps_BTHVW)
        windows, taps = _windows(v_BSHV, taps_BTHVW.shape[1], taps_BTHVW.shape[-1]), taps_BTHVW.unbind(-1)
        y = torch.empty(windows[0].shape, dtype=v_BSHV.dtype, device=v_BSHV.device)
        torch.mul(windows[0], taps[0], out=y)
        for window, tap in zip(windows[1:], taps[1:], strict=True):
            y.addcmul_(window, tap)
        return y

    @staticmethod
    def backward(ctx: Any, dy_BTHV: Tensor) -> tuple[Tensor | None, ...]:
        v_BSHV, taps_BTHVW = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(twice_differentiable(_in_operators, (v_BSHV, taps_BTHVW), (dy_BTHV,)))
        dv, dtaps = torch.zeros_like(v_BSHV), torch.empty_like(taps_BTHVW)
        T, W = taps_BTHVW.shape[1], taps_BTHVW.shape[-1]
        windows = (_windows(x, T, W) for x in (v_BSHV, dv))
        for window, to, tap, dtap in zip(*windows, taps_BTHVW.unbind(-1), dtaps.unbind(-1), strict=True):
            torch.mul(dy_BTHV, window, out=dtap)
            to.addcmul_(dy_BTHV, tap)
        return dv, dtaps


def _sum_of_taps(shifted: list[Tensor], taps_BTHVW: Tensor) -> Tensor:
    """Taps are taken apart once: a slice per tap would make a gradient as large as all taps for each of them."""
    y, *rest = (v * tap for v, tap in zip(shifted, taps_BTHVW.to(shifted[0].dtype).unbind(-1), strict=True))
    for term in rest:
        y = y + term
    return y
