"""States in safetensors files: the tensors by their dotted names, and in the metadata which states they belong to.

A file may come from anybody. Nothing in it is run; whatever is not a state that could have been saved here is refused in one
sentence with the file's name, and nothing larger than the file is allocated for it.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maclaurin.ops.fields import fields_of
from maclaurin.ops.states import State

DTYPES = ("F16", "BF16", "F32", "F64", "I64")
LONGEST_REASON = 300  # characters of safetensors' message, which may quote the file
DEEPEST = 8  # states inside states
OLD_NAMES = {"memory": "recurrent"}  # of fields, in files of older versions
MOST_OF_NOTHING = 2**31  # the sizes of an empty tensor, which take no room in a file, multiplied but for the zeros


def save(state: State, path: str | os.PathLike[str]) -> None:
    from safetensors.torch import save_file

    # copies, because safetensors refuses tensors that share memory, as keys and values of one tensor do
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors().items()}
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        save_file(tensors, temporary, metadata={"state": json.dumps(_described(state))})
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], device: torch.device) -> State:
    try:
        tensors, text = _read(path, device)
        state = _built(_parsed(text), tensors, "")
        if tensors:
            raise ValueError(f"it holds the tensor {next(iter(tensors))!r}, which no field has")
        state.check()
        state.check_values()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{os.fspath(path)} is not a saved state: {error}") from error
    return state


def _described(state: State) -> dict[str, Any]:
    values = {field.name: getattr(state, field.name) for field in fields_of(type(state))}
    return {
        "class": type(state).__name__,
        "states": {name: _described(value) for name, value in values.items() if isinstance(value, State)},
        "tensors": [name for name, value in values.items() if isinstance(value, Tensor)],
        "names": {name: value for name, value in values.items() if isinstance(value, str)},
    }


def _read(path: str | os.PathLike[str], device: torch.device) -> tuple[dict[str, Tensor], str]:
    """The tensors, and what describes the state that they make."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            names = list(file.keys())
            for name in names:
                _check_size(name, file.get_slice(name))
            text = (file.metadata() or {}).get("state")
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(str(error).replace("\n", " ")[:LONGEST_REASON]) from error
    if text is None:
        raise ValueError("it has no 'state' entry in its metadata")
    return tensors, text


def _check_size(name: str, header: Any) -> None:
    """That the tensor is no larger than the file is safetensors' check."""
    shape, dtype = header.get_shape(), header.get_dtype()
    if dtype not in DTYPES:
        raise ValueError(f"the tensor {name!r} must have one of the types {', '.join(DTYPES)}, got {dtype}")
    if 0 in shape and math.prod(size for size in shape if size) > MOST_OF_NOTHING:
        raise ValueError(f"the tensor {name!r} is empty but has the sizes {shape}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its description is nested too deeply to be read") from error
    except ValueError as error:
        raise ValueError(f"its description is not valid JSON: {error}") from error


def _built(description: Any, tensors: dict[str, Tensor], prefix: str) -> State:
    """The state that is described, its tensors taken out of `tensors`. Files without names are of before there were any."""
    if prefix.count(".") > DEEPEST:
        raise ValueError(f"its states are nested more than {DEEPEST} deep")
    if not isinstance(description, dict):
        raise ValueError(f"the description of a state must be an object, got {type(description).__name__}")
    kinds: dict[str, type] = {"class": str, "states": dict, "tensors": list, "names": dict}
    parts = {"names": {}, **description}
    for key, kind in kinds.items():
        if not isinstance(parts.get(key), kind):
            raise ValueError(f"the description of a state must have a {kind.__name__} {key!r}, got {parts.get(key)!r:.80}")
    if parts["class"] not in State._classes:
        raise ValueError(f"the saved state has the unknown class {parts['class']!r:.80}")
    cls = State._classes[parts["class"]]
    fields = {field.name: field for field in fields_of(cls)}
    values: dict[str, Any] = dict.fromkeys(fields)
    described = []
    for name in (*parts["states"], *parts["tensors"], *parts["names"]):
        if not isinstance(name, str) or OLD_NAMES.get(name, name) not in fields:
            raise ValueError(f"a {cls.__name__} has no field {name!r:.80}")
        described.append(OLD_NAMES.get(name, name))
    if len(set(described)) < len(described):
        raise ValueError(f"a field of a {cls.__name__} is described twice")
    for name in parts["tensors"]:
        if (tensor := tensors.pop(prefix + name, None)) is None:
            raise ValueError(f"the saved {cls.__name__} has lost its tensor {prefix + name!r}")
        values[OLD_NAMES.get(name, name)] = tensor
    for name, nested in parts["states"].items():
        values[name] = _built(nested, tensors, f"{prefix}{name}.")
    values.update(parts["names"])
    return cls(**values)
