"""Linear attention over features that a map makes of queries and keys.

    q, k, v = conv(x·W_qkv);   w_ts = φ(q_t)·φ(k_s)·exp(a_{s+1} + … + a_t);   y_t = Σ_s w_ts v_s / Σ_s w_ts;   out = W_o·y

The state is Σ_s φ(k_s)[v_s, 1]ᵀ: num_features x (head_dim + 1) numbers per key-value head, whatever the length. A
query whose weights sum to zero gets zero; where others add an epsilon of 1e-6 to the sum, nothing is added here.

At equal feature size: `num_features=F` in `luna`, `hedgehog`, `t2r` and `performer`; `linear` with `key_dim=F` and
`feature_map="relu"` or `"elu"`, whose maps keep the size of the key. Queries and keys are rotated by their positions before
the map, as in models whose softmax it replaces: a decoder here has no other positional information. `rotary="none"` is
the bare mechanism.

Hedgehog: Zhang et al., arXiv 2402.04347. The map of flash-linear-attention's code, softmax over both signs together;
LoLCATs takes one softmax per sign and separate maps per head, for queries and for keys. T2R: Kasai et al., arXiv 2103.13076.
Performer: Choromanski et al., arXiv 2009.14794. Its code redraws features during training, divides by a largest exponent
that depends on later tokens, and adds 1e-4 to every feature; none of that is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from maclaurin.common.arguments import one_of
from maclaurin.mixers.base import Call, MixerState, RMSNorm, Zeros, initialise
from maclaurin.mixers.feature_maps import FeatureMap, HedgehogMap, PerformerMap, T2RMap
from maclaurin.mixers.mechanisms import Linear, Mechanism
from maclaurin.mixers.near_window import NearWindow
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops.folding import MOST_FEATURES
from maclaurin.ops.states import LinearState

NORMS = ("sum", "output", "none")


class FeatureAttention(ProjectedMixer):
    """Options beside those of every projected mixer:

    norm: "sum" divides by the sum of the weights, "output" is an RMS norm over all heads, "none".
    near_window, near_norm: how many of the last tokens a softmax beside it sees, and what divides both (`near_window.py`).
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)), for all but the feature map, which has its own.

    In Python, any map will do: `FeatureAttention(d_model, num_heads, lambda key_dim: T2RMap(key_dim, 100))`.
    """

    bidirectional = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        feature_map: Callable[[int], FeatureMap],
        *,
        norm: str = "sum",
        near_window: int | None = None,
        near_norm: str = "each",
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("norm", norm, NORMS)
        self.norm = norm
        if near_window is None and near_norm != "each":
            raise ValueError(f"near_norm={near_norm!r} needs near_window")
        if near_window is not None:
            self.near = NearWindow(num_heads, near_window, norm=near_norm, divides=norm == "sum", causal=self.causal)
        self.add_skip_and_gate()
        self.out_norm = RMSNorm(self.inner_dim) if norm == "output" else None
        initialise(self, init)
        self.feature_map = feature_map(self.key_dim)
        if self.feature_map.num_features > MOST_FEATURES:
            raise ValueError(f"num_features must be at most {MOST_FEATURES}, got {self.feature_map.num_features}")

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        y, attention = self.mechanism(p.q, p.k, p.v, p.log_decay, None if state is None else state.attention, call)
        return self.finish(self.with_skip(y, p), x), self.state_after(p, attention)

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        y = self.gated(y_BTHV, x)
        return self.to_output(y if self.out_norm is None else self.out_norm(y), x)

    @property
    def mechanism(self) -> Mechanism:
        far = Linear(self.feature_map, 1.0, self.causal, normalize=self.norm == "sum")
        return far if self.near is None else self.near.beside(far)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(
            self.num_kv_heads, self.feature_map.num_features, self.head_dim + (self.norm == "sum"), dtype=zeros.wide
        )
        return self.carrying(self.beside_window(LinearState(recurrent), tokens, zeros), zeros)


def sized(feature_map: Callable[..., FeatureMap], num_features: int | None) -> Callable[[int], FeatureMap]:
    """The map for a key size, with twice as many features unless their number is given."""

    def build(key_dim: int) -> FeatureMap:
        return feature_map(key_dim, 2 * key_dim if num_features is None else num_features)

    return build


class Hedgehog(FeatureAttention):
    """num_features: an even number, twice the key channels unless given."""

    def __init__(self, d_model: int, num_heads: int, *, num_features: int | None = None, **options: Any) -> None:
        super().__init__(d_model, num_heads, sized(HedgehogMap, num_features), **options)


class T2R(FeatureAttention):
    """num_features: twice the key channels unless given."""

    def __init__(self, d_model: int, num_heads: int, *, num_features: int | None = None, **options: Any) -> None:
        super().__init__(d_model, num_heads, sized(T2RMap, num_features), **options)


class Performer(FeatureAttention):
    """num_features: twice the key channels unless given. seed: of the random directions, which are drawn once."""

    def __init__(
        self, d_model: int, num_heads: int, *, num_features: int | None = None, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(d_model, num_heads, sized(partial(PerformerMap, seed=seed), num_features), **options)


register(
    "hedgehog",
    Hedgehog,
    "linear attention with Hedgehog's learnt features: a softmax over both signs of a linear map",
    "Zhang et al.: The Hedgehog & the Porcupine, arXiv 2402.04347, 2024",
    rotary="rope",
)
register(
    "t2r",
    T2R,
    "linear attention with T2R's learnt features: ReLU of a linear map",
    "Kasai et al.: Finetuning Pretrained Transformers into RNNs, arXiv 2103.13076, 2021",
    rotary="rope",
)
register(
    "performer",
    Performer,
    "linear attention with positive orthogonal random features of the softmax kernel (FAVOR+)",
    "Choromanski et al.: Rethinking Attention with Performers, arXiv 2009.14794, 2021",
    rotary="rope",
)
