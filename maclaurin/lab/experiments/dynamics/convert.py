"""Any mixer and a sequence -> its system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one
from maclaurin.lab.experiments.dynamics import recurrences, separable
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.mixers import build_mixer
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.delta import Delta
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.gated import GatedSoftmax
from maclaurin.mixers.gla import GLA
from maclaurin.mixers.inline import Inline
from maclaurin.mixers.mamba2 import Mamba2
from maclaurin.mixers.metala import MetaLA
from maclaurin.mixers.mlstm import MLSTM
from maclaurin.mixers.normalized import Normalized
from maclaurin.mixers.recurrent import QLSTM, RGLRU
from maclaurin.mixers.s6 import S6
from maclaurin.ops import checks

ORDER = 8  # an even one: then the series of exp is positive everywhere, and so is the sum that divides it

FAMILIES: dict[type[Mixer], Callable[[Any, Tensor, int], System]] = {
    Attention: separable.attention,
    GatedSoftmax: separable.gated_softmax,
    FeatureAttention: separable.feature_attention,
    Normalized: separable.normalized,
    GLA: separable.gla,
    MLSTM: separable.mlstm,
    Delta: separable.delta,
    Inline: separable.inline,
    Mamba2: recurrences.mamba2,
    S6: recurrences.s6,
    QLSTM: recurrences.qlstm,
    RGLRU: recurrences.rglru,
    MetaLA: recurrences.metala,
}


@torch.no_grad()
def to_dsf(mixer: Mixer, x: Tensor, *, order: int = ORDER) -> System:
    """The system that `mixer` is on the sequence x (1, T, d_model): `to_dsf(mixer, x).output()` is `mixer(x)[0]`.

    u are the values that enter the recurrence. What stands before them and beside them (convolution, queries, keys, gates)
    is in the matrices, token by token; what comes behind y is the readout. order: where the series of softmax is cut off.
    """
    checks.tensor("x", x, f"1, time, {mixer.d_model}")
    if x.shape[0] != 1 or x.shape[1] == 0 or x.shape[2] != mixer.d_model:
        raise ValueError(f"x must be one sequence of shape (1, time >= 1, {mixer.d_model}), got {checks.shape(x)}")
    at_least_one("order", order)
    if not mixer.causal:
        raise ValueError("mixer must be causal: one that sees whole sequences is no recurrence from the past to the future")
    for family, convert in FAMILIES.items():
        if isinstance(mixer, family):
            return convert(mixer, x, order)
    raise ValueError(f"{type(mixer).__name__} is of no family whose system is known")


def drawn(name: str, d_model: int, num_heads: int, seed: int, **options: Any) -> Mixer:
    """A mixer of the registry in float64, at its initialisation but for parameters that are zero throughout.

    Those are drawn from N(0, 1): a gate or an augmentation that starts as nothing would be left untested.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mixer = build_mixer(name, d_model, num_heads, **options).double()
        for parameter in mixer.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter)
    return mixer


@torch.no_grad()
def form_error(system: System, mixer: Mixer, x: Tensor) -> float:
    """The largest difference between what the system and the mixer give, over the mixer's largest output."""
    y, _ = mixer(x, return_state=False)
    return ((system.output() - y).abs().max() / y.abs().max()).item()
