"""Students: linear attention that replaces softmax behind the projections of a trained model, the source.

A student sees queries and keys as softmax would, after the source's rotary positions. It applies an affine map per head,
initially the identity, and then does what the mixer of its name does:

    q' = A_h q + a_h,   k' = B_h k + b_h,   y_t = Σ_s w(q'_t, k'_s) v_s / Σ_s w(q'_t, k'_s)

    luna, hedgehog, performer, relu (T2R), elu (elu + 1)    w = φ(q')·φ(k'), `num_features` features
    taylor     w = 1 + s + s²/2,  initially s = q'·k'/√d                     (d+1)(d+2)/2 features
    2mamba     w = s²,  initially s = 1 + q·k/(2√d)                          (d+1)(d+2)/2 features

2mamba's maps have one channel more than the head, initially 1, so that its square starts as 1 + x + x²/4 of the score x and
not as an even function, which cannot tell x from −x.

2mamba has a decay computed from the layer's input, and so has every student of a decoder, whose attention is mostly local.
The decay starts close to 1: e^−0.001 per token, the same for all. In encoders, which see both ways, a decay costs a second
pass: there only 2mamba has one.

LoLCATs (Zhang et al., arXiv 2410.10254) has such maps for Hedgehog, without a decay; here every student has them.
"""

# B batch, T time, H heads, G key-value heads, K key channels, M mapped channels, V value channels

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.mixers import mechanisms
from maclaurin.mixers.base import Call, MixerState
from maclaurin.mixers.beyond_window import BeyondWindow
from maclaurin.mixers.feature_maps import EluMap, FeatureMap, HedgehogMap, PerformerMap, T2RMap
from maclaurin.mixers.luna import ChannelBank, LunaMap
from maclaurin.mixers.mechanisms import Mechanism
from maclaurin.mixers.near_window import NearWindow
from maclaurin.ops import checks
from maclaurin.ops.features import Kernel
from maclaurin.ops.ragged import Inputs, over_documents

OPEN_FORGET = 7.0  # log σ(7) = −softplus(−7) = −0.001 per token
LUNA_CHANNELS = 8
SMALLEST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Shape:
    """The sizes of the attention that a student replaces."""

    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool


class Student(nn.Module, ABC):
    """q (B,T,H,K), k (B,T,G,K), v (B,T,G,V), x (B,T,d_model) the layer's input -> y (B,T,H,V), and the state if asked for.

    Bidirectional students see whole sequences and have no state.
    """

    def __init__(self, shape: Shape, num_features: int, *, decay: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.num_features = num_features  # per query or key; 0 without a feature map
        self.decay_proj = nn.Linear(shape.d_model, shape.num_kv_heads) if decay else None
        if self.decay_proj is not None:
            nn.init.zeros_(self.decay_proj.weight)
            nn.init.constant_(self.decay_proj.bias, -OPEN_FORGET)

    @property
    @abstractmethod
    def mechanism(self) -> Mechanism:
        """The mechanism behind its maps and its decay."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        state: MixerState | None = None,
        *,
        return_state: bool = False,
        attention_mask: Tensor | None = None,
        window: int | None = None,
    ) -> tuple[Tensor, MixerState | None]:
        """attention_mask (B,T): 1 at tokens, 0 at padding, on either side. window: how far back the source could look."""
        checks.sound_state(state, MixerState, x)
        mechanism = self.mechanism.within(window)

        def dense(inputs: Inputs, state: MixerState | None, lengths: Tensor | None) -> tuple[Tensor, MixerState | None]:
            q, k, v, x = inputs
            assert q is not None and k is not None and v is not None and x is not None
            call = Call(lengths=lengths, return_state=return_state)
            y, new = mechanism(q, k, v, self.log_decay(x), None if state is None else state.attention, call)
            return y.to(q.dtype), None if new is None else MixerState(new)  # features are wider

        return over_documents(dense, (q, k, v, x), state, attention_mask=attention_mask)

    @property
    def has_states(self) -> bool:
        return self.shape.causal

    def on_zeros(self, tokens: int, state: MixerState | None, return_state: bool) -> tuple[Tensor, MixerState | None]:
        """One call on a sequence of so many zeros, as a mixer has it."""
        H, G, K = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        like = next(self.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))
        sizes = ((H, K), (G, K), (G, K), (self.shape.d_model,))
        q, k, v, x = (torch.zeros(1, tokens, *size, dtype=like.dtype, device=like.device) for size in sizes)
        return self(q, k, v, x, state, return_state=return_state)

    def log_decay(self, x: Tensor) -> Tensor | None:
        """(B,T,G), at least in float32: it is an exponent."""
        if self.decay_proj is None:
            return None
        z = self.decay_proj(x)
        return -F.softplus(z.to(torch.promote_types(z.dtype, torch.float32)))


class HeadMaps(nn.Module):
    """x (B,T,H,K) -> (B,T,H,M): an affine map per head, initially `scale` times the identity; channels above K are 1."""

    def __init__(self, heads: int, dim: int, *, scale: float = 1.0, extra: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([scale * torch.eye(dim), torch.zeros(extra, dim)]).repeat(heads, 1, 1))
        self.bias = nn.Parameter(torch.cat([torch.zeros(dim), torch.ones(extra)]).repeat(heads, 1))

    def forward(self, x_BTHK: Tensor) -> Tensor:
        return torch.einsum("bthk,hmk->bthm", x_BTHK, self.weight.to(x_BTHK.dtype)) + self.bias.to(x_BTHK.dtype)


class FeatureStudent(Student):
    """Linear attention over the features that a map makes of the mapped queries and keys."""

    def __init__(self, shape: Shape, feature_map: FeatureMap) -> None:
        super().__init__(shape, feature_map.num_features, decay=shape.causal)
        self.q_map = HeadMaps(shape.num_heads, shape.head_dim)
        self.k_map = HeadMaps(shape.num_kv_heads, shape.head_dim)
        self.feature_map = feature_map

    @property
    def mechanism(self) -> Mechanism:
        return mechanisms.Linear(self.feature_map, 1.0, self.shape.causal, (self.q_map, self.k_map))


class SecondOrder(Student):
    """1 + s + s²/2 ("taylor"), or s² ("2mamba")."""

    def __init__(self, shape: Shape, *, squared: bool) -> None:
        order = 2 if squared else (0, 1, 2)
        super().__init__(shape, Kernel.of(order).feature_count(shape.head_dim + squared), decay=squared or shape.causal)
        self.order: int | tuple[int, ...] = order
        scale = (1 / 2 if squared else 1) ** 0.5 * shape.head_dim**-0.25
        self.q_map = HeadMaps(shape.num_heads, shape.head_dim, scale=scale, extra=int(squared))
        self.k_map = HeadMaps(shape.num_kv_heads, shape.head_dim, scale=scale, extra=int(squared))

    @property
    def mechanism(self) -> Mechanism:
        return mechanisms.Power("identity", 1.0, self.shape.causal, (self.q_map, self.k_map), order=self.order)


class Softmax(Student):
    """The source's own attention, for layers that keep it; over the last `window` tokens where one is given."""

    def __init__(self, shape: Shape, window: int | None = None) -> None:
        super().__init__(shape, 0)
        if window is not None:
            at_least_one("window", window)
            if not shape.causal:
                raise ValueError("a window needs a decoder: an encoder's tokens see both ways")
        self.window = window

    @property
    def mechanism(self) -> Mechanism:
        return mechanisms.Softmax(causal=self.shape.causal, window=self.window)


class Gated(Student):
    """Softmax over the last tokens beside a linear student that sees all (`mixers/near_window.py`)."""

    def __init__(self, linear: Student, window: int) -> None:
        super().__init__(linear.shape, linear.num_features)
        self.linear = linear
        self.near = NearWindow(linear.shape.num_heads, window, causal=linear.shape.causal)

    @property
    def mechanism(self) -> Mechanism:
        return self.near.beside(self.linear.mechanism)

    def log_decay(self, x: Tensor) -> Tensor | None:
        return self.linear.log_decay(x)


class Windowed(Student):
    """The source's own weights for the last tokens and the first, a linear student's between (`mixers/beyond_window.py`).

    The student's weights start at 1 where a score is 0, as those of softmax are before they are divided.
    """

    def __init__(self, linear: Student, window: int) -> None:
        super().__init__(linear.shape, linear.num_features)
        at_least_one("window", window)
        if not linear.shape.causal:
            raise ValueError("a window needs a decoder: an encoder's tokens see both ways")
        self.linear = linear
        self.window = window
        self.log_scale = nn.Parameter(torch.zeros(linear.shape.num_heads))
        if not self.log_scale.is_meta:  # as where weights are loaded into it
            with torch.no_grad():
                self.log_scale.sub_(self._weight_of_zero().clamp(min=SMALLEST_WEIGHT).log())

    def _weight_of_zero(self) -> Tensor:
        far = self.mechanism.far
        shape, device = self.shape, self.log_scale.device
        q = torch.zeros(1, 1, shape.num_heads, shape.head_dim, dtype=torch.float64, device=device)
        k = torch.zeros(1, 1, shape.num_kv_heads, shape.head_dim, dtype=torch.float64, device=device)
        return far.weights(q, k)[0, :, 0, 0].to(self.log_scale.dtype)

    @property
    def mechanism(self) -> BeyondWindow:
        return BeyondWindow.beside(self.linear.mechanism, self.log_scale, self.window)

    def log_decay(self, x: Tensor) -> Tensor | None:
        return self.linear.log_decay(x)


def _luna(dim: int, features: int) -> FeatureMap:
    if features % LUNA_CHANNELS:
        raise ValueError(f"num_features must be a multiple of luna's {LUNA_CHANNELS} channels, got {features}")
    return LunaMap(dim, features // LUNA_CHANNELS, ChannelBank(LUNA_CHANNELS), envelope=True)


FEATURE_MAPS: dict[str, Callable[[int, int], FeatureMap]] = {
    "luna": _luna,
    "hedgehog": HedgehogMap,
    "performer": PerformerMap,
    "relu": T2RMap,
    "elu": EluMap,
}
SECOND_ORDER = {"taylor": False, "2mamba": True}
SOFTMAX = "softmax"
STUDENTS = (*SECOND_ORDER, *FEATURE_MAPS)
NAMES = (*STUDENTS, "sliding-window", SOFTMAX)


def build_student(
    name: str, shape: Shape, *, num_features: int | None = None, window: int | None = None, one_sum: bool = False
) -> Student:
    """num_features: of a student with a feature map; by default that of second order, rounded down to a multiple of 8.

    window: that of `sliding-window`, or of a softmax over the last tokens beside any linear student. one_sum: of the weights
    in the window and of those before it, where there would be a sum of each and a gate.
    """
    one_of("student", name, NAMES)
    if name == SOFTMAX:
        return Softmax(shape)
    if name == "sliding-window":
        if window is None:
            raise ValueError("the student 'sliding-window' needs a window")
        return Softmax(shape, window)
    linear: Student
    if name in SECOND_ORDER:
        linear = SecondOrder(shape, squared=SECOND_ORDER[name])
    else:
        features = second_order_features(shape.head_dim) if num_features is None else num_features
        linear = FeatureStudent(shape, FEATURE_MAPS[name](shape.head_dim, features))
    if window is None:
        return linear
    return Windowed(linear, window) if one_sum else Gated(linear, window)


def second_order_features(head_dim: int) -> int:
    """What second order has, (d+1)(d+2)/2, rounded down to a multiple of 8."""
    return (head_dim + 1) * (head_dim + 2) // 2 // 8 * 8


def is_new(name: str) -> bool:
    """Whether a parameter of a converted model belongs to a student and not to the source."""
    return ".student." in name
