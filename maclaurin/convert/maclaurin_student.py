"""Conversion of this project's own softmax models: another mixer in the layer, with the same projections.

Here the student is the mixer itself, so the result is a plain `maclaurin` model. All other parts of the mixer start without
effect: a convolution that passes the token on, a decay of 1. All linear students have that decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.config import named_options
from maclaurin.models.linearised.students import OPEN_FORGET, SOFTMAX, STUDENTS

# student -> mixer and its options
OPEN = {"decay": "forget"}
MIXERS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, OPEN) for name in STUDENTS} | {
    "relu": ("t2r", OPEN),
    "elu": ("linear", OPEN | {"feature_map": "elu"}),
    "sliding-window": ("sliding-window", {}),
    SOFTMAX: (SOFTMAX, {}),
}
KEPT = ("rotary", "rope_theta", "rotary_interleaved", "num_kv_heads", "head_dim", "init")  # options of the source's layers


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
            by_mixer[mixer] = shared | preset | _own_options(mixer, options)
    fields = source.to_dict() | {"mixer": mixers, "mixer_options": by_mixer}
    config = MaclaurinConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    config.architectures = [MaclaurinForCausalLM.__name__]
    converted = MaclaurinForCausalLM(config).to(dtype=model.dtype)
    missing, unexpected = converted.load_state_dict(model.state_dict(), strict=False)
    if unexpected:
        raise ValueError(f"these students have no parameter for {unexpected[0]} of the source")
    for index, (layer, student) in enumerate(zip(converted.model.layers, chosen, strict=True)):
        if student in MIXERS and student != SOFTMAX:
            _without_effect(layer.mixer, f"model.layers.{index}.mixer.", missing)
    converted.generation_config = model.generation_config
    return converted.train(model.training)


def _own_options(mixer: str, options: dict[str, Any]) -> dict[str, Any]:
    """By the mixer's names for them, where it has them."""
    window = "window" if mixer == "sliding-window" else "near_window"
    chosen = {window: options.get("window"), "num_features": options.get("num_features")}
    known = mixer_entry(mixer).options()
    return {name: value for name, value in chosen.items() if value is not None and name in known}


@torch.no_grad()
def _without_effect(mixer: nn.Module, prefix: str, missing: Sequence[str]) -> None:
    """Initialises what the source did not have; the source's weights stay."""
    if not isinstance(mixer, ProjectedMixer):
        return
    if mixer.conv is not None and f"{prefix}conv.weight" in missing:
        mixer.conv.weight.zero_()
        mixer.conv.weight[..., -1] = 1
        if mixer.conv.bias is not None:
            mixer.conv.bias.zero_()
    if mixer.decay_proj is not None and f"{prefix}decay_proj.weight" in missing:
        mixer.decay_proj.weight.zero_()
        mixer.decay_proj.bias.fill_(OPEN_FORGET)


def is_softmax(mixer: nn.Module) -> bool:
    return isinstance(mixer, Attention) and mixer.kernel is None and mixer.window is None
