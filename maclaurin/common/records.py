"""Records: frozen dataclasses that are stored as JSON objects and read back with the type of every field checked.

What is read may come from anybody, or from another version of this package: unknown fields are ignored, missing
ones take their default, and a field of another type is an error of one sentence that names its place.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args, get_origin, get_type_hints

Json = dict[str, Any]  # an object, ready for `json.dumps`
ABSENT = {"absent": True}  # metadata of a field that is left out of JSON where it is None
LARGEST = 2**63  # of whole numbers: sizes, counts and seeds are far below
WORDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Record:
    """A base for dataclasses of texts, numbers, sequences, mappings by text, and other records."""

    def to_json(self) -> Json:
        """Its fields, by their names, but for those that are None and ABSENT."""
        values = ((own, getattr(self, own.name)) for own in dataclasses.fields(self))
        return {key_of(own): _plain(value) for own, value in values if value is not None or "absent" not in own.metadata}

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        """What `to_json` gave. `where` is the place of the record in its file, for errors."""
        if not isinstance(values, dict):
            raise ValueError(f"{where or cls.__name__} must be a JSON object, got {values!r:.60}")
        types_of = get_type_hints(cls)
        found = {}
        for own in dataclasses.fields(cls):
            kind, key = types_of[own.name], key_of(own)
            place = f"{where}.{key}" if where else key
            if key in values:
                found[own.name] = _read(kind, values[key], place)
            elif types.NoneType in get_args(kind):
                found[own.name] = None
            elif own.default is dataclasses.MISSING and own.default_factory is dataclasses.MISSING:
                raise ValueError(f"{place} is missing")
        return cls(**found)


def key_of(own: dataclasses.Field[Any]) -> str:
    """Its name in JSON: its own, or that of its metadata, where it is a word of Python."""
    key: str = own.metadata.get("key", own.name)
    return key


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _read(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as what the annotation of its field says, or a ValueError."""
    if kind is Any:
        return value
    if isinstance(kind, types.UnionType):  # of one type and None
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
        return None if value is None else _read(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(value, where)
    origin = get_origin(kind)
    if origin is tuple or origin is Sequence:
        return _sequence(get_args(kind), value, where)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a JSON object, got {value!r:.60}")
        return {name: _read(get_args(kind)[1], one, f"{where}.{name}") for name, one in value.items()}
    return _simple(kind, value, where)


def _sequence(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a JSON list, got {value!r:.60}")
    if len(kinds) == 1 or kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise ValueError(f"{where} must have {len(kinds)} entries, got {len(value)}")
    return tuple(_read(kind, one, f"{where}[{place}]") for place, (kind, one) in enumerate(zip(kinds, value, strict=True)))


def _simple(kind: type, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number and not (isinstance(value, int) and abs(value) > sys.float_info.max):
        return float(value)
    if kind is int and is_number and isinstance(value, int) and abs(value) < LARGEST:
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    raise ValueError(f"{where} must be {WORDS[kind]}, got {value!r:.60}")
