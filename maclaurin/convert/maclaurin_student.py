"""This project's own softmax models made linear: the layer's mixer gets another name, and keeps the projections.

Here a student is the mixer itself, so what comes out is a plain `maclaurin` model. What a mixer has beside the projections
starts without effect: a convolution that passes the token on, a decay that is open. All linear students have that decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.config import named_options
from maclaurin.models.linearised.students import SOFTMAX

# student -> mixer and its options
OPEN = {"decay": "forget"}
MIXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "2mamba": ("2mamba", OPEN),
    "taylor": ("taylor", OPEN),
    "luna": ("luna", OPEN),
    "hedgehog": ("hedgehog", OPEN),
    "performer": ("performer", OPEN),
    "relu": ("t2r", OPEN),
    "elu": ("linear", OPEN | {"feature_map": "elu"}),
    "sliding-window": ("sliding-window", {}),
    SOFTMAX: (SOFTMAX, {}),
}
KEPT = ("rotary", "rope_theta", "rotary_interleaved", "num_kv_heads", "head_dim", "init")  # options of the source's layers
OPEN_FORGET = 7.0  # a bias: log σ(7) = −0.001 a token


def convert_own(
    model: MaclaurinForCausalLM, students: Sequence[str], options: dict[str, Any] | None = None
) -> MaclaurinForCausalLM:
    """A copy with another mixer in each softmax layer; layers of other kinds stay as they are."""
    options = dict(options or {})
    source = model.config
    names = source.layer_mixers()
    if len(students) != len(names):
        raise ValueError(f"students must name one student for each of the {len(names)} layers, got {len(students)}")
    chosen = [student if name == SOFTMAX else name for student, name in zip(students, names, strict=True)]
    by_mixer = {name: named_options(source.mixer_options, name) for name in set(names)}
    shared = {"rotary": "rope"} | {key: value for key, value in by_mixer[SOFTMAX].items() if key in KEPT}
    mixers = []
    for student in chosen:
        mixer, preset = MIXERS.get(student, (student, {}))
        mixers.append(mixer)
        if mixer not in by_mixer:
            by_mixer[mixer] = shared | preset | _own_options(student, options)
    fields = source.to_dict() | {"mixer": mixers, "mixer_options": by_mixer}
    config = MaclaurinConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    config.architectures = [MaclaurinForCausalLM.__name__]
    converted = MaclaurinForCausalLM(config).to(dtype=model.dtype)
    _, unexpected = converted.load_state_dict(model.state_dict(), strict=False)
    if unexpected:
        raise ValueError(f"these students have no place for {unexpected[0]} of the source")
    inherited = model.state_dict()
    for layer, student in zip(converted.model.layers, chosen, strict=True):
        if student in MIXERS and student != SOFTMAX:
            _without_effect(layer.mixer, f"model.layers.{layer_index(converted, layer)}.mixer.", inherited)
    converted.generation_config = model.generation_config
    return converted.train(model.training)


def layer_index(model: MaclaurinForCausalLM, layer: nn.Module) -> int:
    return next(index for index, other in enumerate(model.model.layers) if other is layer)


def _own_options(student: str, options: dict[str, Any]) -> dict[str, Any]:
    """By the names that the student's mixer has for them."""
    window, features = options.get("window"), options.get("num_features")
    chosen = {}
    if window is not None:
        chosen["window" if student == "sliding-window" else "near_window"] = window
    if features is not None and student in ("luna", "hedgehog", "performer", "relu"):
        chosen["num_features"] = features
    return chosen


@torch.no_grad()
def _without_effect(mixer: nn.Module, prefix: str, inherited: dict[str, torch.Tensor]) -> None:
    """Sets what the source did not have; weights that it had are left alone."""
    if not isinstance(mixer, ProjectedMixer):
        return
    if mixer.conv is not None and f"{prefix}conv.weight" not in inherited:
        mixer.conv.weight.zero_()
        mixer.conv.weight[..., -1] = 1
        if mixer.conv.bias is not None:
            mixer.conv.bias.zero_()
    if mixer.decay_proj is not None and f"{prefix}decay_proj.weight" not in inherited:
        mixer.decay_proj.weight.zero_()
        mixer.decay_proj.bias.fill_(OPEN_FORGET)


def is_softmax(mixer: nn.Module) -> bool:
    return isinstance(mixer, Attention) and mixer.kernel is None and mixer.window is None
