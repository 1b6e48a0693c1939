"""The arguments of a function as flags of the shell: names, types and defaults are those of its signature."""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any


def parse(function: Callable[..., Any], args: Sequence[str], command: str) -> dict[str, Any]:
    """Flags -> keyword arguments. A tuple is written with commas between; the docstring of the function is the help."""
    parser = argparse.ArgumentParser(
        prog=command,
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        kind = _kind(hints[name])
        flags = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        if kind is bool:
            parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, default=parameter.default)
        else:
            text = "default: %(default)s"
            parser.add_argument(*flags, dest=name, type=kind, default=parameter.default, help=text)
    try:
        found, unknown = parser.parse_known_args(list(args))
    except argparse.ArgumentError as error:
        raise ValueError(f"{command}: {error}") from None
    if unknown:
        raise ValueError(f"{command} has no option {unknown[0]!r}; see {command} --help")
    return vars(found)


def _kind(hint: Any) -> Callable[[str], Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]

        def several(text: str) -> tuple[Any, ...]:
            return tuple(item(part) for part in text.split(",") if part)

        several.__name__ = f"list of {item.__name__}s with commas between"
        return several
    kind: Callable[[str], Any] = hint
    return kind
