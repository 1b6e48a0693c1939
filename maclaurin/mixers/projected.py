"""What the layers of the thesis share: project to q, k, v, convolve, discretise, decay, rotate.

Papers: "On the Expressiveness of Softmax Attention: A Recurrent Neural Network Perspective" (arXiv 2507.23632), paper 1,
and "2Mamba2Furious" (arXiv 2602.17363), paper 2. Their code has decays that may grow (−silu, −z·softplus), which are not
reproduced here. Rotary positions rounded to bfloat16, with which paper 2's softmax was trained under autocast, are an
option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one, one_of, positive
from maclaurin.mixers.base import AT_ONCE, Call, Mixer, MixerState, ShortConv, Zeros, advanced, initial_dt_bias, shared_out
from maclaurin.mixers.mechanisms import Mechanism
from maclaurin.mixers.near_window import NearState, NearWindow
from maclaurin.mixers.qk_norm import QKNorm
from maclaurin.mixers.selective_rope import SELECTIVE_OPTIONS, RotationState, SelectiveRotary
from maclaurin.ops.arithmetic import repeat_heads, wide
from maclaurin.ops.conv import ACTIVATIONS
from maclaurin.ops.products import of_layer
from maclaurin.ops.rotary import rotary as turn_by_position
from maclaurin.ops.rotary import rotate, split_and_turned
from maclaurin.ops.states import ConvState, State, TokenState
from maclaurin.ops.transitions import decay_transition

ROTARIES = ("none", "rope", "selective")
DECAYS = ("none", "softplus", "forget", "mamba", "channel")
DISCRETISATIONS = ("none", "dt", "sigmoid")
WHERE_ACTIVE = (*ACTIVATIONS, "silu-v")
BIASES = (False, True, "output")

S = TypeVar("S", bound=TokenState)


@dataclass(frozen=True)
class Projections:
    """What one call of a projected mixer works with."""

    q: Tensor  # (B, T, H, key_dim)
    k: Tensor  # (B, T, G, key_dim)
    v: Tensor  # (B, T, G, head_dim)
    plain_v: Tensor  # v before it is discretised
    dt: Tensor | None  # (B, T, G): the time step, where there is one
    log_decay: Tensor | None  # (B, T, G), or (B, T, G, key_dim)
    conv: ConvState | None
    positions: Tensor | None  # (B, T), where something depends on them
    position: Tensor | None  # (B,): after the last token
    rotation: RotationState | None


class GridFilter(nn.Conv2d):
    """A depthwise filter of 3 x 3 over values (B, T, G, V) at the places of a grid, row by row."""

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels)
        self.grid = grid

    def forward(self, v_BTGV: Tensor) -> Tensor:
        image = v_BTGV.flatten(2).transpose(1, 2).unflatten(2, tuple(self.grid))
        filtered: Tensor = super().forward(image).flatten(2).transpose(1, 2).unflatten(2, v_BTGV.shape[2:])
        return filtered


class ProjectedMixer(Mixer):
    """Options, with the same names in every projected mixer:

    num_kv_heads: key-value heads, each shared by num_heads / num_kv_heads query heads. head_dim: d_model / num_heads.
    key_dim: channels of a query and a key; head_dim unless given, or the fraction of it in the mechanism's paper.
    shared_keys: one query and one key per token for all heads, which differ in values and decays, as in Mamba-2; a number
    for so many, each of a group of heads (grouped value attention).
    conv_width, conv_bias: the causal short convolution over q, k and v; 0 for none. activation: "silu" on q, k, v after it,
    or "silu-v" on v alone.
    qk_norm: an RMS norm of q and k per head, with learned weights (`qk_norm.py`).
    rotary: "rope" rotates q and k by exact positions, with rope_theta; "selective" by angles computed from the tokens, with
    rotary_options (`selective_rope.py`). rotary_interleaved pairs channels (0,1), (2,3)… rounded_positions: rounds
    those of "rope" to bfloat16, so that beyond 256 tokens share positions; for checkpoints that were trained so.
    rotary_dim: how many channels of a head "rope" turns, its first ones; all unless given.
    decay: "softplus" a = −softplus(x·W), "forget" a = log σ(x·W + b), "mamba" a = −exp(A_log)·dt. decay_scale multiplies a.
    decay_bias: a bias, initially 0, in "softplus" too. "channel", where the mechanism takes it: one per key channel, a = log
    σ(x·W₁·W₂ + b) through decay_rank channels, as in gla.
    value_discretization: v·dt with dt = softplus(x·W_dt), or its sigmoid; dt_bias adds Mamba's bias to dt.
    projection_bias: biases on the projections to q, k, v and to the output, as vision transformers have them; "output" on
    that alone, as Griffin.
    skip: adds D⊙v to the weighted values, with D = 1 at the start. lepe: adds a depthwise filter of 3 x 3 over the values,
    which are places of a (rows, columns) grid; needs causal=False (CSwin, arXiv 2107.00652). gate: multiplies the output by
    silu(x·W_z).
    """

    has_block = True
    key_divisor: ClassVar[int] = 1  # key_dim is head_dim divided by it, unless given
    gate_bias: ClassVar[bool] = False  # of the projection of the gate
    decays_per_channel: ClassVar[bool] = False  # whether its mechanism takes decay="channel"

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        shared_keys: bool | int = False,
        conv_width: int = 0,
        conv_bias: bool = True,
        activation: str = "identity",
        qk_norm: bool = False,
        rotary: str = "none",
        rope_theta: float = 10000.0,
        rotary_options: dict[str, Any] | None = None,
        rotary_interleaved: bool = False,
        rounded_positions: bool = False,
        rotary_dim: int | None = None,
        decay: str = "none",
        decay_scale: float = 1.0,
        decay_bias: bool = False,
        decay_rank: int = 16,
        value_discretization: str = "none",
        dt_bias: bool = False,
        projection_bias: bool | str = False,
        skip: bool = False,
        lepe: tuple[int, int] | None = None,
        gate: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        if gate and self.own_gate:
            raise ValueError("gate must be False: this mixer has an output gate of its own")
        one_of("activation", activation, WHERE_ACTIVE)
        one_of("projection_bias", projection_bias, BIASES)
        at_least(0, "conv_width", conv_width)
        self.activation = activation
        self._set_sizes(num_kv_heads, head_dim, key_dim, shared_keys)
        self.qkv_proj = nn.Linear(d_model, sum(self.qkv_sizes), bias=projection_bias not in (False, "output"))
        self.conv = ShortConv(sum(self.qkv_sizes), conv_width, conv_bias) if conv_width else None
        self._set_rotary(rotary, rope_theta, rotary_options or {}, rotary_interleaved, rounded_positions, rotary_dim)
        self._set_decay(decay, decay_scale, decay_bias, decay_rank, value_discretization, dt_bias)
        self.out_proj = nn.Linear(self.inner_dim, d_model, bias=bool(projection_bias))
        self.qk_norm = QKNorm(num_heads, self.num_kv_heads, self.key_dim) if qk_norm else None
        self.near: NearWindow | None = None  # for mechanisms that have the option near_window
        self.skip: nn.Parameter | None = None
        self.gate_proj: nn.Linear | None = None
        self.lepe: GridFilter | None = None
        if lepe is not None and causal:
            raise ValueError("lepe needs causal=False: a filter over a grid sees later tokens")
        self._has_skip, self._has_gate, self._lepe_grid = skip, gate, lepe

    def add_skip_and_gate(self) -> None:
        """To be called by every mixer after its own weights, which are then drawn as they would be without a gate."""
        if self._has_skip:
            self.skip = nn.Parameter(torch.ones(self.num_heads, self.head_dim))
        if self._lepe_grid is not None:
            self.lepe = GridFilter(self.num_kv_heads * self.head_dim, self._lepe_grid)
        if self._has_gate:
            self.gate_proj = nn.Linear(self.d_model, self.inner_dim, bias=self.gate_bias)

    def _set_sizes(
        self, num_kv_heads: int | None, head_dim: int | None, key_dim: int | None, shared_keys: bool | int
    ) -> None:
        heads = self.num_heads
        if head_dim is None and self.d_model % heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads unless head_dim is given, got {self.d_model} and {heads}"
            )
        if num_kv_heads is not None and (not isinstance(num_kv_heads, int) or num_kv_heads < 1 or heads % num_kv_heads):
            raise ValueError(f"num_kv_heads must divide the {heads} heads, got {num_kv_heads}")
        for name, given in (("head_dim", head_dim), ("key_dim", key_dim)):
            if given is not None:
                at_least_one(name, given)
        self.head_dim = head_dim or self.d_model // heads
        self.key_dim = key_dim or max(1, self.head_dim // self.key_divisor)
        self.num_kv_heads = num_kv_heads or heads
        self.inner_dim = heads * self.head_dim
        self.shared_keys = int(shared_keys)
        if shared_keys < 0 or (shared_keys and self.num_kv_heads % shared_keys):
            raise ValueError(f"shared_keys must divide the {self.num_kv_heads} key-value heads, got {shared_keys}")
        queries, keys = (int(shared_keys),) * 2 if shared_keys else (heads, self.num_kv_heads)
        self.qkv_sizes = [queries * self.key_dim, keys * self.key_dim, self.num_kv_heads * self.head_dim]

    @property
    def folds(self) -> bool:
        return self.causal and self.selective is None and self.near is None

    @property
    def whole_because(self) -> str | None:
        if self.selective is not None or self.lepe is not None:
            return "rotary='selective' and lepe take a slice of the token or of the image for each head"
        return None

    @property
    def fused(self) -> dict[str, list[int]]:
        return {"qkv_proj": self.qkv_sizes, "conv": self.qkv_sizes}

    def options_of_part(self, parts: int) -> dict[str, Any]:
        sizes = {"head_dim": self.head_dim, "key_dim": self.key_dim}
        groups = {"num_kv_heads": shared_out("num_kv_heads", self.num_kv_heads, parts)}
        if self.shared_keys:
            groups["shared_keys"] = shared_out("shared_keys", self.shared_keys, parts)
        return sizes | groups

    def _set_rotary(
        self,
        rotary: str,
        rope_theta: float,
        options: dict[str, Any],
        interleaved: bool,
        rounded_positions: bool,
        rotary_dim: int | None,
    ) -> None:
        one_of("rotary", rotary, ROTARIES)
        positive("rope_theta", rope_theta)
        if rotary != "none" and self.key_dim % 2:
            raise ValueError(f"rotary={rotary!r} needs an even number of channels per head, got {self.key_dim}")
        if rotary == "selective" and not self.causal:
            raise ValueError("rotary='selective' sums angles over time: it needs causal=True")
        if options and rotary != "selective":
            raise ValueError(f"rotary_options belong to rotary='selective', got rotary={rotary!r}")
        if rounded_positions and rotary != "rope":
            raise ValueError(f"rounded_positions belongs to rotary='rope', got rotary={rotary!r}")
        if rotary_dim is not None:
            at_least(2, "rotary_dim", rotary_dim)
            if rotary != "rope" or rotary_dim % 2 or rotary_dim > self.key_dim:
                raise ValueError(
                    f"rotary_dim must be an even number of the {self.key_dim} channels that rotary='rope' turns, "
                    f"got {rotary_dim} and rotary={rotary!r}"
                )
        for option in options:
            one_of("every key of rotary_options", option, SELECTIVE_OPTIONS)
        self.rotary = rotary
        self.rope_theta = rope_theta
        self.rotary_interleaved = interleaved
        self.rounded_positions = rounded_positions
        self.rotary_dim = rotary_dim
        self.selective: SelectiveRotary | None = None
        if rotary == "selective":
            self.selective = SelectiveRotary(self.d_model, self.num_kv_heads, self.key_dim // 2, **options)

    def _set_decay(
        self, decay: str, decay_scale: float, decay_bias: bool, rank: int, value_discretization: str, dt_bias: bool
    ) -> None:
        one_of("decay", decay, DECAYS)
        at_least_one("decay_rank", rank)
        if decay == "channel" and not self.decays_per_channel:
            raise ValueError("decay='channel' needs a mechanism of order 1 or 2, such as mamba2s or 2mamba")
        one_of("value_discretization", value_discretization, DISCRETISATIONS)
        positive("decay_scale", decay_scale)
        needs_dt = decay == "mamba" or value_discretization != "none"
        if dt_bias and not needs_dt:
            raise ValueError("dt_bias=True needs a time step: decay='mamba' or a value_discretization")
        if decay_bias and decay not in ("softplus", "forget"):
            raise ValueError(f"decay_bias=True needs decay='softplus' or 'forget', got {decay!r}")
        self.decay = decay
        self.decay_scale = decay_scale
        self.value_discretization = value_discretization
        G = self.num_kv_heads
        self.decay_proj: nn.Linear | None = None
        if decay in ("softplus", "forget"):
            self.decay_proj = nn.Linear(self.d_model, G, bias=decay_bias or decay == "forget")
            if self.decay_proj.bias is not None:
                nn.init.zeros_(self.decay_proj.bias)
        self.channel_decay: nn.Sequential | None = None
        if decay == "channel":
            down = nn.Linear(self.d_model, rank, bias=False)
            self.channel_decay = nn.Sequential(down, nn.Linear(rank, G * self.key_dim))
        self.dt_proj = nn.Linear(self.d_model, G, bias=False) if needs_dt else None
        self.dt_bias = nn.Parameter(initial_dt_bias(G)) if dt_bias else None
        self.A_log = nn.Parameter(torch.empty(G).uniform_(1, 16).log()) if decay == "mamba" else None

    def project(self, x: Tensor, state: MixerState | None = None, call: Call = AT_ONCE) -> Projections:
        qkv, conv_state = self.over_time(of_layer(self.qkv_proj, x), x, None if state is None else state.conv, call)
        positions, position = advanced(state, x, call.lengths) if self._needs_position else (None, None)
        rotation = None
        if self.turns_whole_heads:
            q, k, v = self._split_and_turned(qkv, positions)
        else:
            widths = (self.key_dim, self.key_dim, self.head_dim)
            parts = zip(qkv.split(self.qkv_sizes, dim=-1), widths, strict=True)
            q, k, v = (part.unflatten(-1, (-1, width)) for part, width in parts)
            q, k = repeat_heads(q, self.num_heads), repeat_heads(k, self.num_kv_heads)
            if self.qk_norm is not None:
                q, k = self.qk_norm(q, k)
            if self.rotary == "rope":
                q, k = self.turned(q, positions), self.turned(k, positions)
        if self.activation == "silu-v":
            v = F.silu(v)
        if self.selective is not None:
            angles, rotation = self.selective(x, None if state is None else state.rotation, call)
            # autocast rounds q and k to bfloat16; their gradients must stay wide: those of angles are summed over all tokens
            q, k = (rotate(part.to(x.dtype), angles, interleaved=self.rotary_interleaved) for part in (q, k))
        plain_v, dt = v, self._time_step(x)
        if self.value_discretization != "none":
            assert dt is not None
            v = (v * dt[..., None]).to(v.dtype)
        log_decay = self.log_decay(x, dt)
        if call.transitions is not None:
            call.transitions.append(decay_transition(wide(k[..., 0]) * 0 if log_decay is None else log_decay))
        return Projections(q, k, v, plain_v, dt, log_decay, conv_state, positions, position, rotation)

    @property
    def turns_whole_heads(self) -> bool:
        """Whether queries and keys are rotated as they are projected, head by head."""
        return self.rotary == "rope" and self.rotary_dim is None and self.qk_norm is None and not self.shared_keys

    def _split_and_turned(self, qkv: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, of which queries and keys are rotated by their positions as a whole."""
        heads, widths = (self.num_heads, self.num_kv_heads), (self.key_dim, self.head_dim)
        positions, theta = self._rounded(positions), self.rope_theta
        return split_and_turned(qkv, heads, widths, positions, theta=theta, interleaved=self.rotary_interleaved)

    def _rounded(self, positions: Tensor | None) -> Tensor:
        assert positions is not None
        return positions.to(torch.bfloat16) if self.rounded_positions else positions

    def turned(self, part: Tensor, positions: Tensor | None) -> Tensor:
        """Queries or keys, rotated by their positions."""
        positions = self._rounded(positions)
        turning, *fixed = (part,) if self.rotary_dim is None else part.tensor_split([self.rotary_dim], dim=-1)
        turned = turn_by_position(turning, positions, theta=self.rope_theta, interleaved=self.rotary_interleaved)
        return torch.cat([turned, *fixed], dim=-1) if fixed else turned

    def over_time(self, qkv: Tensor, x: Tensor, before: ConvState | None, call: Call) -> tuple[Tensor, ConvState | None]:
        """q, k and v with what they take from the tokens before: the short convolution, if there is one."""
        if self.conv is not None:
            everywhere = self.activation if self.activation in ACTIVATIONS else "identity"
            return self.conv.run(qkv, before, call, activation=everywhere)
        return F.silu(qkv) if self.activation == "silu" else qkv, None

    def _time_step(self, x: Tensor) -> Tensor | None:
        """dt (B, T, G), in float32 at least: a decay is an exponent, and bfloat16 would round it to three digits."""
        if self.dt_proj is None:
            return None
        dt = self.dt_proj(x)
        dt = dt.to(torch.promote_types(dt.dtype, torch.float32))
        if self.dt_bias is not None:
            dt = dt + self.dt_bias
        return torch.sigmoid(dt) if self.value_discretization == "sigmoid" else F.softplus(dt)

    def log_decay(self, x: Tensor, dt: Tensor | None) -> Tensor | None:
        """(B, T, G), in float32 at least, or (B, T, G, key_dim)."""
        if self.channel_decay is not None:
            return F.logsigmoid(wide(self.channel_decay(x)).unflatten(-1, (-1, self.key_dim))) * self.decay_scale
        if self.decay_proj is not None:
            z = self.decay_proj(x)
            z = z.to(torch.promote_types(z.dtype, torch.float32))
            return (F.logsigmoid(z) if self.decay == "forget" else -F.softplus(z)) * self.decay_scale
        if self.A_log is not None:
            assert dt is not None
            return -self.A_log.to(dt.dtype).exp() * dt * self.decay_scale
        return None

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism between the projections and `finish`. None if it needs more than q, k, v and a decay."""
        return None

    def with_skip(self, y_BTHV: Tensor, p: Projections) -> Tensor:
        """The weighted values, the token's own value where there is a skip, and those around it where there is a LePE."""
        if self.lepe is not None:
            y_BTHV = y_BTHV + repeat_heads(self.lepe(p.plain_v), self.num_heads)
        return y_BTHV if self.skip is None else y_BTHV + repeat_heads(p.plain_v, self.num_heads) * self.skip

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """(B, T, inner_dim)"""
        y = y.flatten(2)
        return y if self.gate_proj is None else y * F.silu(of_layer(self.gate_proj, x))

    def finish(self, y: Tensor, x: Tensor) -> Tensor:
        """From the weighted values y (B, T, H, head_dim) to the output: norms, if any, gate and projection."""
        return self.to_output(self.gated(y, x), x)

    def to_output(self, y: Tensor, x: Tensor) -> Tensor:
        projected: Tensor = of_layer(self.out_proj, y.flatten(2).to(x.dtype))
        return projected

    def state_after(self, p: Projections, attention: State | None) -> MixerState | None:
        """The mixer's state after a call: the attention's state, and that of everything in `project`."""
        if attention is None:
            return None
        return MixerState(attention, p.conv, p.position, rotation=p.rotation, kind=self.kind)

    def carrying(self, attention: State, zeros: Zeros) -> MixerState:
        """The same for the shapes of `state_of`."""
        return MixerState(
            attention,
            None if self.conv is None else self.conv.state_of(zeros),
            zeros(dtype=torch.long) if self._needs_position else None,
            rotation=None if self.selective is None else self.selective.state_of(zeros),
            kind=self.kind,
        )

    @property
    def _needs_position(self) -> bool:
        return self.rotary == "rope"

    def tokens_of(self, kind: type[S], tokens: int, heads: int, zeros: Zeros) -> S:
        """A KV cache of so many tokens, with log decays if there is a decay."""
        keys = zeros(tokens, heads, self.key_dim, dtype=self._key_dtype(zeros.dtype))
        decay = None if self.decay == "none" else zeros(tokens, heads, dtype=zeros.wide)
        return kind(keys, zeros(tokens, heads, self._kept_values), decay)

    def _key_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of cached keys, for inputs of `dtype`."""
        return dtype

    def beside_window(self, far: State, tokens: int, zeros: Zeros) -> State:
        """The attention's state, beside that of a window where there is one."""
        if self.near is None:
            return far
        shape = (min(tokens, self.near.window - 1), self.num_kv_heads)
        return NearState(far, TokenState(zeros(*shape, self.key_dim), zeros(*shape, self._kept_values)))

    @property
    def _kept_values(self) -> int:
        """Channels of a cached value: those of a head, and a one where the weights of two mechanisms have one sum."""
        return self.head_dim + (self.near is not None and self.near.joint)
