"""InLine: linear attention whose weights are centred instead of divided, and a local filter made from the mean token.

    w_ts = (s/t)·φ(q_t)·(φ(k_s) − mean φ(k)) + 1/t        y_t = Σ_s w_ts v_s + Σ_r R_t[r] ⊙ v_{t+r}
    R_t = G₂·gelu(G₁·mean(x) + b₁) + b₂                   G₁, G₂: one block per head; s = 1/√d

Means and the count t are over the tokens that t sees: all N of an image, or those so far. Weights sum to 1 and may be
negative. Dividing by a sum makes queries on one ray indistinguishable; subtracting the mean is injective wherever softmax
is.

The paper is about images: `causal=False, grid=(h, w)`. There R is a square of 3 x 3 taps per sample and channel; tokens
before the grid (`class_tokens`) attend but are not filtered. Padding is refused, since an image is always whole. The
authors' code has biases on the projections and assumes square images. Two forms are defined here: the causal one, with a
filter over the last tokens, and one for sequences without a grid, with a filter centred on the token.

Han et al.: Bridging the Divide: Reconsidering Softmax and Linear Attention, arXiv 2412.06590.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one, one_of
from maclaurin.mixers import mechanisms
from maclaurin.mixers.base import Call, MixerState, Zeros, initialise
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops import checks
from maclaurin.ops.arithmetic import repeat_heads, running_sum
from maclaurin.ops.backends import reason_for_torch
from maclaurin.ops.conv import last_inputs
from maclaurin.ops.fields import Axes
from maclaurin.ops.inline import InlineState, counts, mean
from maclaurin.ops.local import causal_filter, centred_filter, grid_filter, mean_filter_and_sum
from maclaurin.ops.products import is_hooked
from maclaurin.ops.states import ConvState, State

FEATURE_MAPS = ("identity", "relu", "leaky-relu", "exp")


@dataclass(frozen=True)
class FilteredInlineState(State):
    """The attention's state, and what the local filter needs of the past: the sum of all inputs, and the last values."""

    attention: InlineState
    input_sum: Annotated[Tensor | None, Axes("B D")] = None
    values: ConvState | None = None

    def after(self, earlier: Self, transition: Tensor) -> Self:
        attention = self.attention.after(earlier.attention, transition)
        if self.input_sum is None or self.values is None or earlier.input_sum is None or earlier.values is None:
            return type(self)(attention)
        values = self.values.behind(earlier.values, self.attention.count)
        return type(self)(attention, earlier.input_sum + self.input_sum, values)


class HeadwiseLinear(nn.Conv1d):
    """A grouped convolution of width 1, as one matrix product per head, so that time need not be the last dimension."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__(inputs, outputs, 1, groups=heads)

    def forward(self, x_BTHI: Tensor, last: int = 1) -> Tensor:
        """last: the outputs are a matrix of that many columns, and are returned column by column."""
        weight_HOI, bias_HO = self.of_heads(last)
        return torch.einsum("bthi,hoi->btho", x_BTHI, weight_HOI) + bias_HO

    def of_heads(self, last: int = 1) -> tuple[Tensor, Tensor]:
        """Weights (heads, outputs, inputs) and bias (heads, outputs) of what `forward` returns."""
        assert self.bias is not None
        weight_HOLI, bias_HOL = (
            self.weight.view(self.groups, -1, last, self.weight.shape[1]),
            self.bias.view(self.groups, -1, last),
        )
        return weight_HOLI.transpose(1, 2).flatten(1, 2), bias_HOL.transpose(1, 2).flatten(1, 2)


class LocalFilter(nn.Module):
    """From a mean token to the taps of a filter per channel; each head sees its own part of the token only."""

    def __init__(self, d_model: int, channels: int, heads: int, taps: int) -> None:
        super().__init__()
        self.taps = taps
        self.hidden = HeadwiseLinear(d_model, channels, heads)
        self.out = HeadwiseLinear(channels, taps * channels, heads)

    def forward(self, mean_BTD: Tensor) -> Tensor:
        """Taps (B, T, heads, channels per head, taps), one tap's channels next to each other in memory."""
        hidden = F.gelu(self.hidden(mean_BTD.unflatten(-1, (self.hidden.groups, -1))))
        taps_BTHWV: Tensor = self.out(hidden, self.taps).unflatten(-1, (self.taps, -1))
        return taps_BTHWV.transpose(-1, -2)

    def by_kernel(self, x_BTD: Tensor, v_BTGV: Tensor) -> bool:
        """Whether a kernel filters v by taps from the means of x, of which then nothing is written."""
        layers = (self.hidden, self.out)
        plain = all(type(layer) is HeadwiseLinear and not is_hooked(layer) for layer in layers) and not is_hooked(self)
        narrow = any(x.dtype != torch.float32 for x in (x_BTD, v_BTGV, self.hidden.weight))
        return plain and not narrow and x_BTD.shape[1] > 1 and reason_for_torch("auto", x_BTD, x_BTD.dtype) is None

    def filtered(self, x_BTD: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """The values filtered by the kernel, and the sum of all x."""
        weights = []
        for layer, last in ((self.hidden, 1), (self.out, self.taps)):
            weight_HOI, bias_HO = layer.of_heads(last)
            weights += [weight_HOI.transpose(1, 2), bias_HO]
        x_BTHI, v_BTHV = x_BTD.unflatten(-1, (self.hidden.groups, -1)), repeat_heads(v_BTGV, self.hidden.groups)
        y, input_sum = mean_filter_and_sum(x_BTHI, v_BTHV, *weights)
        return y, input_sum.flatten(1)


class Inline(ProjectedMixer):
    """Options beside those of every projected mixer:

    feature_map: φ of q and k, "identity", "relu", "leaky-relu" or "exp", e^(0.2x). learn_scale: s is a parameter per head.
    local_residual: the filter R; local_width: how many taps it has, or the side of its square if there is a grid.
    grid: (rows, columns) of an image, row by row, where causal=False. class_tokens: how many tokens come before the grid.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)).
    """

    bidirectional = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        feature_map: str = "identity",
        learn_scale: bool = False,
        local_residual: bool = True,
        local_width: int = 3,
        grid: tuple[int, int] | None = None,
        class_tokens: int = 0,
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("feature_map", feature_map, FEATURE_MAPS)
        at_least_one("local_width", local_width)
        at_least(0, "class_tokens", class_tokens)
        if self.decay != "none":
            raise ValueError(f"decay must be 'none': inline weighs all tokens alike, got {self.decay!r}")
        if local_residual and d_model % num_heads:
            raise ValueError(f"local_residual=True needs a d_model that is a multiple of num_heads, got {d_model}")
        if grid is None and class_tokens:
            raise ValueError(f"class_tokens needs a grid, got {class_tokens} and grid=None")
        if grid is not None:
            self._check_grid(grid, local_width)
        self.feature_map = feature_map
        self.grid = grid
        self.class_tokens = class_tokens
        self.scale = nn.Parameter(torch.full((num_heads, 1), self.key_dim**-0.5)) if learn_scale else None
        taps = local_width if grid is None else local_width**2
        self.local = LocalFilter(d_model, self.inner_dim, num_heads, taps) if local_residual else None
        self.add_skip_and_gate()
        initialise(self, init)

    def _check_grid(self, grid: tuple[int, int], local_width: int) -> None:
        if self.causal:
            raise ValueError("grid needs causal=False: an image has no order in time")
        if not isinstance(grid, tuple) or len(grid) != 2:
            raise ValueError(f"grid must be a pair (rows, columns), got {grid!r}")
        for side in grid:
            at_least_one("grid", side)
        if local_width % 2 == 0:
            raise ValueError(f"local_width must be odd on a grid, got {local_width}")

    @property
    def whole_because(self) -> str | None:
        return super().whole_because if self.local is None else "its filter takes a slice of the token for each head"

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        before = None if state is None else checks.initial_state(state.attention, FilteredInlineState)
        self._check_image(x, call.lengths)
        p = self.project(x, state, call)
        y, attention = self.mechanism(p.q, p.k, p.v, None, None if before is None else before.attention, call)
        input_sum = values = None
        if self.local is not None and self.causal:
            local, input_sum, values = self._local_so_far(x, p.v, before, call.lengths)
            y = y + local
        elif self.local is not None:
            y = y + self._local_of_all(x, p.v, call.lengths)
        after = None if not isinstance(attention, InlineState) else FilteredInlineState(attention, input_sum, values)
        return self.finish(self.with_skip(y, p), x), self.state_after(p, after)

    @property
    def mechanism(self) -> mechanisms.Inline:
        """Without the filter."""
        scale = None if self.scale is None else 1.0
        return mechanisms.Inline(self.feature_map, scale, self.causal, head_scale=self.scale)

    def _local_so_far(
        self, x: Tensor, v: Tensor, state: FilteredInlineState | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, ConvState]:
        """A filter per token from the mean of the tokens so far: the mean of all would leak the future."""
        assert self.local is not None
        if state is None and self.local.by_kernel(x, v):
            local, input_sum = self.local.filtered(x, v)
            return local, input_sum, ConvState(last_inputs(v.flatten(2), None, self.local.taps - 1, lengths))
        wide = torch.promote_types(x.dtype, torch.float32)
        sums, values, count = running_sum(x.to(wide)), None, None  # padding is zero
        if state is not None:
            assert state.input_sum is not None
            sums, values, count = sums + state.input_sum[:, None], state.values, state.attention.count
        taps = self.local((sums / counts(count, x)[..., None]).to(x.dtype))
        local, values = causal_filter(v, taps, state=values, lengths=lengths)
        return local, sums[:, -1].clone(), values

    def _local_of_all(self, x: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.local is not None
        taps = self.local(mean(x.to(torch.promote_types(x.dtype, torch.float32)), lengths).to(x.dtype))
        if self.grid is None:
            return centred_filter(v, taps, lengths=lengths)
        filtered = grid_filter(v[:, self.class_tokens :], taps, grid=self.grid)
        return F.pad(filtered, (0, 0, 0, 0, self.class_tokens, 0))

    def _check_image(self, x: Tensor, lengths: Tensor | None) -> None:
        if self.grid is None:
            return
        places = self.class_tokens + math.prod(self.grid)
        if lengths is not None or x.shape[1] != places:
            raise ValueError(
                f"with grid={self.grid} and class_tokens={self.class_tokens} every sequence must be one whole image of "
                f"{places} tokens, got {x.shape[1]}{'' if lengths is None else ' with padding'}"
            )

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        heads, wide = (self.num_kv_heads, self.key_dim), zeros.wide
        recurrent = zeros(heads[0], heads[1] + 1, self.head_dim, dtype=wide)
        attention = InlineState(recurrent, zeros(*heads, dtype=wide), zeros(dtype=torch.long))
        input_sum = values = None
        if self.local is not None:
            input_sum = zeros(self.d_model, dtype=wide)
            values = ConvState(zeros(self.local.taps - 1, self.num_kv_heads * self.head_dim))
        return self.carrying(FilteredInlineState(attention, input_sum, values), zeros)


register(
    "inline",
    Inline,
    "InLine: injective linear attention, its weights centred instead of divided, with a local filter",
    "Han et al.: Bridging the Divide: Reconsidering Softmax and Linear Attention, arXiv 2412.06590, 2024",
)
