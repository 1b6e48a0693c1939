"""Mechanisms by name, as functions attention(Q, K, V): what the probes of the lab are given.

They are those of the mixers (`mixers/mechanisms.py`). What a mixer does beside its weights (rotation, decay, convolution,
local filter) is switched off, and a mixer that is more than a function of Q, K and V is refused.

Keys have one channel, so that the factor 1/√d of the mixers is 1 and scores are q·k.
"""

# T tokens, V value channels

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maclaurin.lab.experiments.draws import seeded
from maclaurin.mixers.mechanisms import Mechanism
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# what would make a weight more than a function of the query and the key
BARE: dict[str, Any] = {"conv_width": 0, "local_residual": False}
BARE |= dict.fromkeys(("rotary", "decay", "value_discretization"), "none")
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
class Named:
    """attention(Q (T,1), K (T,1), V (T,V)) -> (T,V) in float64; every token sees every token."""

    name: str
    mechanism: Mechanism

    @torch.no_grad()
    def __call__(self, q_T1: Tensor, k_T1: Tensor, v_TV: Tensor) -> Tensor:
        q, k, v = (x.double()[None, :, None] for x in (q_T1, k_T1, v_TV))
        y, _ = self.mechanism(q, k, v)
        return y[0, :, 0]


def mechanism(name: str, **options: Any) -> Named:
    """By name: a mixer's, `taylor-P`, `power-P`, or one of `NAMED`. options: of the mixer, in place of those of the name."""
    if match := SERIES.fullmatch(name):
        mixer, chosen = ("taylor", {}) if match[1] == "taylor" else ("linear", {"feature_map": "identity"})
        return _of_mixer(name, mixer, {"order": int(match[2])} | chosen)
    if name not in NAMED and name not in available_mixers():
        known = ", ".join((*NAMED, "taylor-P", "power-P"))
        raise ValueError(
            f"unknown mechanism {name!r}: it must be the name of a mixer (`maclaurin mixers`) or one of {known}"
        )
    mixer, chosen = NAMED.get(name, (name, {}))
    return _of_mixer(name, mixer, chosen | options)


def _of_mixer(name: str, mixer_name: str, options: dict[str, Any]) -> Named:
    known = mixer_entry(mixer_name).options()
    if "key_dim" not in known:
        raise ValueError(f"mechanism {name!r} has no queries and keys of its own: it is no attention(Q, K, V)")
    bare = {option: value for option, value in BARE.items() if option in known}
    with seeded(0):  # of feature maps that are drawn
        mixer = build_mixer(mixer_name, 3, 1, causal=False, key_dim=1, head_dim=1, **bare | options).double()
    found = mixer.mechanism if isinstance(mixer, ProjectedMixer) else None
    further = {part.split(".")[0] for part, _ in mixer.named_parameters()} - OWN_PARTS
    if found is None or further:
        raise ValueError(
            f"mechanism {name!r} is more than a function of queries, keys and values: it has {', '.join(sorted(further))}"
        )
    return Named(name, found)
