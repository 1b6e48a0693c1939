"""The fields of a dataclass, or the arguments of a function, as flags of a command."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any

import typer

Read = Callable[[str], Any]  # the value that a text stands for


def takes(
    name: str,
    source: Callable[..., Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    unlisted: Mapping[str, Read | None] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: its argument `name` becomes a dict of the given fields of `source`.

    source: a dataclass, whose fields have their help in metadata["help"], or a function. defaults: shown instead of its
    own. A field that is not given is not in the dict, so that files and earlier runs can decide it.
    aliases: other names of fields. unlisted: more flags, with what reads their values, None for those that are true or
    false. Both are in the dict under the names that were typed; help does not list them.
    """
    listed = [(parameter, help) for parameter, help in _fields(source) if parameter.name not in without]
    others = {field: alias for alias, field in (aliases or {}).items()}
    flags = [_parameter(parameter, _also(help, others.get(parameter.name)), defaults or {}) for parameter, help in listed]
    flags += [
        _parameter(parameter.replace(name=others[parameter.name], default=None), "", {}, hidden=True)
        for parameter, _ in listed
        if parameter.name in others
    ]
    flags += [_unlisted(flag, read) for flag, read in (unlisted or {}).items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def with_flags(**values: Any) -> None:
            given = {flag.name: values.pop(flag.name) for flag in flags}
            command(**values, **{name: {field: value for field, value in given.items() if value is not None}})

        rest = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            if parameter.name != name
        ]
        with_flags.__signature__ = own.replace(parameters=[*rest, *flags])  # type: ignore[attr-defined]
        with_flags.__annotations__ = {}  # typer reads the signature
        return with_flags

    return decorate


def _fields(source: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, str]]:
    """With their types resolved, and their help."""
    hints = typing.get_type_hints(source)
    about = {}
    if dataclasses.is_dataclass(source):
        about = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(source)}
    for name, parameter in inspect.signature(source).parameters.items():
        yield parameter.replace(annotation=hints[name]), about.get(name, "")


def _also(help: str, alias: str | None) -> str:
    return f"{help.rstrip('.')}; also --{alias}." if alias else help


def _unlisted(name: str, read: Read | None) -> inspect.Parameter:
    spelled, hint = (f"--{name}/--no_{name}", bool | None) if read is None else (f"--{name}", str | None)
    option = typer.Option(spelled, hidden=True, show_default=False, parser=read)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, option])


def _parameter(
    field: inspect.Parameter, help: str, defaults: Mapping[str, Any], *, hidden: bool = False
) -> inspect.Parameter:
    """A flag that is None if it is not given, spelled as in Python and YAML."""
    name, kind = field.name, inspect.Parameter.KEYWORD_ONLY
    if field.kind is inspect.Parameter.VAR_POSITIONAL:
        several = Annotated[list[field.annotation] | None, typer.Argument(show_default=False)]  # type: ignore[name-defined]
        return inspect.Parameter(name, kind, default=None, annotation=several)
    hint = _without_none(field.annotation)
    default = defaults.get(name, field.default)
    if default not in (None, "") and default is not False and "(default:" not in help:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        help = f"{help} (default: {shown})".strip()
    settings: dict[str, Any] = {"help": help, "show_default": False, "hidden": hidden}
    if typing.get_origin(hint) is tuple:
        settings |= {"parser": _several(typing.get_args(hint)[0]), "metavar": "A,B,…"}
        hint = str
    spelled = f"--{name}/--no_{name}" if hint is bool else f"--{name}"
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[hint | None, typer.Option(spelled, **settings)])


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _several(item: type) -> Callable[[str], tuple[Any, ...]]:
    """A tuple is written with commas."""
    return lambda text: tuple(item(part) for part in text.split(",") if part)
