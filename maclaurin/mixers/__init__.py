"""Mixers: modules made of ops, by name. Importing this package registers all of them."""

from maclaurin.mixers import (
    attention,
    delta,
    feature_attention,
    fox,
    gated,
    gla,
    inline,
    luna,
    mamba2,
    metala,
    mlstm,
    normalized,
    recurrent,
    s6,
)
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry

__all__ = [
    "Mixer",
    "MixerState",
    "attention",
    "available_mixers",
    "build_mixer",
    "delta",
    "feature_attention",
    "fox",
    "gated",
    "gla",
    "inline",
    "luna",
    "mamba2",
    "metala",
    "mixer_entry",
    "mlstm",
    "normalized",
    "recurrent",
    "s6",
]
