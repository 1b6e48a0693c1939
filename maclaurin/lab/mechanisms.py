"""Mechanisms as functions attention(Q, K, V), whatever mixer they come from: what the probes of the lab are given.

A mixer becomes such a function by projections that are the identity: its input is [Q, K, V] side by side, its output is
read as it is. What a mixer does beside its weights (rotation, decay, convolution, local filter) is switched off, and a
mixer that is more than a function of Q, K and V is refused.

With keys of one channel the factor 1/√d of the mixers is 1, so scores are q·k.
"""

# T tokens, K key channels, V value channels

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from maclaurin.mixers.base import Mixer
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# what would make a weight more than a function of the query and the key
BARE: dict[str, Any] = {
    "rotary": "none",
    "decay": "none",
    "conv_width": 0,
    "value_discretization": "none",
    "local_residual": False,
}
# mechanisms that are a mixer with options
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "elu": ("linear", {"feature_map": "elu"}),
    "relu": ("linear", {"feature_map": "relu"}),
    "cosine": ("linear", {"feature_map": "cosine"}),
    "qk-norm": ("softmax", {"feature_map": "cosine"}),
    "performer": ("performer", {"num_features": 1024}),
    "t2r": ("t2r", {"num_features": 64}),
}
SERIES = re.compile(r"(taylor|power)-([1-9][0-9]?)")
OWN_PARTS = {"qkv_proj", "out_proj", "feature_map"}


@dataclass(frozen=True)
class Mechanism:
    """attention(Q (T,K), K (T,K), V (T,V)) -> (T,V) in float64; every token sees every token."""

    name: str
    mixer: str
    options: dict[str, Any] = field(hash=False, default_factory=dict)

    @torch.no_grad()
    def __call__(self, q_TK: Tensor, k_TK: Tensor, v_TV: Tensor) -> Tensor:
        module = _module(self, q_TK.shape[1], v_TV.shape[1])
        y, _ = module(torch.cat([q_TK, k_TK, v_TV], dim=1).double()[None], return_state=False)
        result: Tensor = y[0, :, : v_TV.shape[1]]
        return result


def mechanism(name: str) -> Mechanism:
    """By name: a mixer's, `taylor-P`, `power-P`, or one of `NAMED`."""
    if match := SERIES.fullmatch(name):
        kind, order = match[1], int(match[2])
        options = {"order": order} if kind == "taylor" else {"order": order, "feature_map": "identity"}
        return Mechanism(name, "taylor" if kind == "taylor" else "linear", options)
    if name not in NAMED and name not in available_mixers():
        known = ", ".join((*NAMED, "taylor-P", "power-P"))
        raise ValueError(
            f"unknown mechanism {name!r}: it must be the name of a mixer (`maclaurin mixers`) or one of {known}"
        )
    mixer, options = NAMED.get(name, (name, {}))
    found = Mechanism(name, mixer, options)
    _module(found, 1, 1)  # what cannot be one is refused here, not in the middle of an experiment
    return found


@lru_cache(maxsize=128)
def _module(mechanism: Mechanism, key_dim: int, value_dim: int) -> Mixer:
    known = mixer_entry(mechanism.mixer).options()
    bare = {option: value for option, value in BARE.items() if option in known}
    d_model = 2 * key_dim + value_dim
    if "key_dim" not in known:
        raise ValueError(f"mechanism {mechanism.name!r} has no queries and keys of its own: it is no attention(Q, K, V)")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of feature maps that are drawn
        mixer = build_mixer(
            mechanism.mixer,
            d_model,
            1,
            causal=False,
            key_dim=key_dim,
            head_dim=value_dim,
            **bare | mechanism.options,
        ).double()
    further = {name.split(".")[0] for name, _ in mixer.named_parameters()} - OWN_PARTS
    if further or not isinstance(mixer, ProjectedMixer):
        raise ValueError(
            f"mechanism {mechanism.name!r} is more than a function of queries, keys and values: "
            f"it has {', '.join(sorted(further))}"
        )
    mixer.requires_grad_(False)
    mixer.qkv_proj.weight.copy_(torch.eye(d_model, dtype=torch.float32, device="cpu"))
    mixer.out_proj.weight.copy_(torch.eye(d_model, value_dim, dtype=torch.float32, device="cpu"))
    if value_dim > 1 and isinstance(mixer, FeatureAttention):
        # what a seed draws depends on the sizes drawn before: the map must not change with the values
        first = _module(mechanism, key_dim, 1)
        assert isinstance(first, FeatureAttention)
        mixer.feature_map.load_state_dict(first.feature_map.state_dict())
    return mixer.eval()
