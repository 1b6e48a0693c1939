"""What the fields of a configuration may be: it comes from a file, and the file from anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 2**16
MOST_LABELS = 2**20
MOST_PARAMETERS = 2**40
SCALARS = (bool, int, float, str, type(None))


def whole(name: str, value: object, smallest: int = 1, largest: int = LARGEST_SIZE) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise ValueError(f"{name} must be a whole number from {smallest} to {largest}, got {shown(value)}")


def real(name: str, value: object, smallest: float = 0.0, largest: float = 1e6) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not smallest <= value <= largest:  # NaN fails too
        raise ValueError(f"{name} must be a number from {smallest:g} to {largest:g}, got {shown(value)}")


def flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shown(value)}")


def token_id(name: str, value: object) -> None:
    """Some files write -1 for none."""
    if value is not None:
        whole(name, value, smallest=-1)


def names(name: str, value: object) -> None:
    """One, or a list of them."""
    if not isinstance(value, str) and not _are_names(value):
        raise ValueError(f"{name} must be a name or a list of names, got {shown(value)}")


def options(name: str, value: object) -> None:
    """Options of mixers: scalars, lists or dicts of scalars, by option name; or such dicts by mixer name."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dict of options, got {shown(value)}")
    _option(name, value, dicts=3)


def _option(name: str, value: object, dicts: int) -> None:
    """dicts: how deeply they may be nested."""
    if isinstance(value, dict) and dicts:
        for key, one in value.items():
            _option(f"{name}[{key!r}]", one, dicts - 1)
        return
    for one in value if isinstance(value, list | tuple) else (value,):
        if not isinstance(one, SCALARS):
            raise ValueError(f"{name} must be a number, a name, true or false, or a list of these, got {shown(value)}")
        if isinstance(one, int | float) and not abs(one) <= LARGEST_SIZE:
            raise ValueError(f"{name} must be finite and at most {LARGEST_SIZE}, got {shown(one)}")


def parameters(count: int) -> None:
    if count > MOST_PARAMETERS:
        raise ValueError(f"these sizes ask for {count:,} parameters, more than the {MOST_PARAMETERS:,} that are allowed")


def inherited(config: Any, extra: dict[str, Any]) -> None:
    """The fields that every configuration of `transformers` has, and those of a file that this one does not know."""
    for name, value in extra.items():
        # each becomes an attribute, which would hide a method of that name
        own = getattr(type(config), name, None)
        is_computed = isinstance(own, property) and own.fset is None
        if name.startswith("__") or name == "attribute_map" or callable(own) or is_computed:
            raise ValueError(f"{name} is no field of a configuration, got {shown(value)}")
    if extra.get("num_labels") is not None:
        whole("num_labels", extra["num_labels"], smallest=0, largest=MOST_LABELS)  # each gets a name at once
    for name, value in (("dtype", config.dtype), ("torch_dtype", extra.get("torch_dtype"))):
        kind = getattr(torch, value, None) if isinstance(value, str) else value
        if value is not None and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            raise ValueError(f"{name} must be a floating point type such as 'float32', got {shown(value)}")
    if config.architectures is not None and not _are_names(config.architectures):
        raise ValueError(f"architectures must be a list of names, got {shown(config.architectures)}")
    for name in ("id2label", "label2id"):
        if not isinstance(getattr(config, name), dict | None):
            raise ValueError(f"{name} must be a dict, got {shown(getattr(config, name))}")
    for name in ("is_encoder_decoder", "return_dict", "output_hidden_states"):
        flag(name, getattr(config, name))


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def shown(value: object) -> str:
    """Short, whatever it is: a number of a million digits cannot even be printed."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"a number of about {value.bit_length() * math.log10(2):.0f} digits"
    if isinstance(value, Sequence | dict) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60]
