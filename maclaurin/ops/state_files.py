"""States in safetensors files: the tensors by their dotted names, and in the metadata which states they belong to.

A file may come from anybody. Nothing in it is run; whatever is not a state that could have been saved here is refused in one
sentence with the file's name, and nothing larger than the file is allocated for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.files import replacing
from maclaurin.ops.fields import fields_of
from maclaurin.ops.states import State

DTYPES = ("F16", "BF16", "F32", "F64", "I64")
LONGEST_REASON = 300  # characters of safetensors' message, which may quote the file
DEEPEST = 8  # states inside states
OLD_NAMES = {"memory": "recurrent"}  # of fields, in files of older versions
MOST_STATES = 2**16  # in a file: layers of a model
MOST_OF_NOTHING = 2**31  # the sizes of an empty tensor, which take no room in a file, multiplied but for the zeros


def save(state: State, path: str | os.PathLike[str]) -> None:
    _write(state.tensors(), json.dumps(_described(state)), path)


def save_all(states: Sequence[State | None], path: str | os.PathLike[str], **notes: Any) -> None:
    """Many states in one file, and what JSON can say beside them."""
    held = {str(place): state for place, state in enumerate(states) if state is not None}
    tensors = {f"{place}.{name}": tensor for place, state in held.items() for name, tensor in state.tensors().items()}
    described = {place: _described(state) for place, state in held.items()}
    _write(tensors, json.dumps({"count": len(states), "states": described, "notes": notes}), path)


def load(path: str | os.PathLike[str], device: torch.device) -> State:
    with _refusing(path, "a saved state"):
        tensors, text = _read(path, device)
        state = _built(_parsed(text), tensors, "")
        _check_loaded([state], tensors)
    return state


def load_all(path: str | os.PathLike[str], device: torch.device) -> tuple[list[State | None], dict[str, Any]]:
    """What `save_all` wrote. The notes are as they stand in the file, which anybody may have written."""
    with _refusing(path, "a file of saved states"):
        tensors, text = _read(path, device)
        description = _parsed(text)
        if not isinstance(description, dict) or "count" not in description:
            raise ValueError("it holds the state of one layer")
        count, described, notes = (description.get(name) for name in ("count", "states", "notes"))
        if type(count) is not int or not 0 <= count <= MOST_STATES or not isinstance(notes, dict):
            raise ValueError(f"it must say how many states it holds, at most {MOST_STATES}, and have notes")
        if not isinstance(described, dict) or not set(described) <= set(map(str, range(count))):
            raise ValueError(f"it must describe the states 0 to {count - 1}, or some of them")
        states = {place: _built(one, tensors, f"{place}.") for place, one in described.items()}
        _check_loaded(list(states.values()), tensors)
    return [states.get(str(place)) for place in range(count)], notes


@contextmanager
def _refusing(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{os.fspath(path)} is not {kind}: {error}") from error


def _check_loaded(states: list[State], left: dict[str, Tensor]) -> None:
    if left:
        raise ValueError(f"it holds the tensor {next(iter(left))!r}, which no field has")
    for state in states:
        state.check()
        state.check_values()


def _write(tensors: dict[str, Tensor], text: str, path: str | os.PathLike[str]) -> None:
    from safetensors.torch import save_file

    # copies, because safetensors refuses tensors that share memory, as keys and values of one tensor do
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(Path(path)) as temporary:
        save_file(copies, temporary, metadata={"state": text})


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
