"""Mechanisms by name, as functions attention(Q, K, V): what the probes of the lab are given.

They are those of the mixers (`mixers/mechanisms.py`). What a mixer does beside its weights (rotation, decay, convolution,
local filter) is switched off, and a mixer that is more than a function of Q, K and V is refused.

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

from maclaurin.mixers import mechanisms
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
        q, k, v = (x.double()[None, :, None] for x in (q_TK, k_TK, v_TV))
        y, _ = _of_mixer(self, q_TK.shape[1])(q, k, v)
        return y[0, :, 0]


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
    _of_mixer(found, 1)  # what cannot be one is refused here, not in the middle of an experiment
    return found


@lru_cache(maxsize=128)
def _of_mixer(mechanism: Mechanism, key_dim: int) -> mechanisms.Mechanism:
    known = mixer_entry(mechanism.mixer).options()
    if "key_dim" not in known:
        raise ValueError(f"mechanism {mechanism.name!r} has no queries and keys of its own: it is no attention(Q, K, V)")
    bare = {option: value for option, value in BARE.items() if option in known}
    sizes = {"key_dim": key_dim, "head_dim": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of feature maps that are drawn
        mixer = build_mixer(mechanism.mixer, 2 * key_dim + 1, 1, causal=False, **sizes, **bare | mechanism.options).double()
    found = mixer.mechanism if isinstance(mixer, ProjectedMixer) else None
    further = {name.split(".")[0] for name, _ in mixer.named_parameters()} - OWN_PARTS
    if found is None or further:
        raise ValueError(
            f"mechanism {mechanism.name!r} is more than a function of queries, keys and values: "
            f"it has {', '.join(sorted(further))}"
        )
    return found
