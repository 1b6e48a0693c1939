"""What a published layout is: how it is recognised, what its config.json says, and where every tensor goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from maclaurin.mixers import build_mixer
from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import MaclaurinConfig, fields

Described = dict[str, Any]  # what config.json says
Shapes = Mapping[str, tuple[int, ...]]  # of the tensors of a checkpoint
Names = dict[str, str | tuple[str, ...]]  # ours -> theirs, or those that ours is made of; {} is the number of a layer
EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Layout:
    """recognised: by config.json. fields: of MaclaurinConfig, by config.json and the tensors. described: the way back.

    names: of the tensors that all layers have. mixers: of those of each mixer that a layer may have.
    flat: ends of our names of tensors that have one dimension there and several here. beside: of tensors whose parts are
    joined along their last dimension, not their first. shared: theirs -> those of ours whose rows it has, in their order.
    """

    recognised: Callable[[Described], bool]
    fields: Callable[[Described, Shapes], dict[str, Any]]
    described: Callable[[MaclaurinConfig], Described]
    names: Names
    mixers: Mapping[str, Names]
    mlp: str = "swiglu"
    flat: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def must(described: Described, expected: dict[str, Any]) -> None:
    """Refuses fields that ask for what the mixers do not compute; one that is absent has the value expected."""
    for name, value in expected.items():
        given = described.get(name, value)
        if given != value and not (value in (None, False, []) and not given):
            raise ValueError(
                f"config.json must have {name} = {value!r}, which is all that the mixers compute, got {given!r:.60}"
            )


def size(described: Described, name: str, default: int | None = None) -> int:
    """A field that counts something."""
    value = described[name] if default is None else described.get(name, default)
    fields.whole(name, value)
    return int(value)


def real(described: Described, name: str, default: float) -> float:
    value = described.get(name, default)
    fields.real(name, value)
    return float(value)


def shared_out(described: Described, name: str, ratio: float, heads: str = "num_heads") -> int:
    """Channels of each head, where a ratio says how many times the width all heads have together."""
    channels, count = int(size(described, "hidden_size") * real(described, name, ratio)), size(described, heads)
    if channels < 1 or channels % count:
        raise ValueError(f"{name} must give a multiple of the {count} heads, got {channels} channels")
    return channels // count


def tokens(described: Mapping[str, Any]) -> dict[str, Any]:
    return {name: described.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def of_type(model_type: str) -> Callable[[Described], bool]:
    return lambda described: described.get("model_type") == model_type


def options_of(config: MaclaurinConfig, name: str) -> dict[str, Any]:
    """All options of the mixers of that name; sizes that follow from others with their value."""
    options = mixer_entry(name).options() | config.options_of(name)
    with torch.device("meta"):
        mixer = build_mixer(name, config.hidden_size, config.num_attention_heads, **config.options_of(name))
    return {key: getattr(mixer, key, None) if value is None else value for key, value in options.items()}


def sizes_of(config: MaclaurinConfig) -> Described:
    """The fields that most layouts name as transformers does."""
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        **tokens(vars(config)),
    }
