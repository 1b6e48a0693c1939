"""Names with options, as people type them: `gla,2mamba:conv_width=4,gate=true` is gla, and 2mamba with two options.

A comma separates names, and options too: what has the form key=value belongs to the name before it. A value is JSON, or
else a word. Commas inside brackets and quotation marks separate nothing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

NAMED = re.compile(r"([^:=]+?)\s*:\s*(.*)", re.DOTALL)  # the name, and its first option
BARE = re.compile(r"[\w.+-]+")  # values that need no quotation marks


def choices(argument: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The names, in their order, with their options; ValueError names the argument."""
    found: list[tuple[str, dict[str, Any]]] = []
    for item in _items(argument, text):
        named = NAMED.fullmatch(item)
        if named:
            found.append((named[1], {}))
        elif "=" not in item:
            found.append((item, {}))
            continue
        elif not found:
            raise ValueError(f"{argument} must begin with a name, got {text!r:.80}")
        key, value = _option(argument, named[2] if named else item)
        options = found[-1][1]
        if key in options:
            raise ValueError(f"{argument} gives {key} of {found[-1][0]!r} twice")
        options[key] = value
    return found


def spelled(name: str, options: Mapping[str, Any]) -> str:
    """One choice as it would be typed."""
    return f"{name}:{','.join(f'{key}={_value(value)}' for key, value in options.items())}" if options else name


def near_miss(name: str, known: Collection[str]) -> str:
    """What stands behind an unknown name, anywhere in a sentence: the known one that it looks like, if there is one."""
    same = [one for one in known if one.lower() == name.lower()]
    close = same or difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _items(argument: str, text: str) -> Iterator[str]:
    """What stands between commas, outside brackets and quotation marks."""
    depth, quoted, item = 0, False, ""
    for place, character in enumerate(text + ","):
        if character == '"' and text[place - 1 : place] != "\\":
            quoted = not quoted
        if not quoted:
            depth += (character in "[{") - (character in "]}")
        if character == "," and (place == len(text) or not (quoted or depth)):
            if quoted or depth:
                raise ValueError(f"{argument} must close its brackets and quotation marks, got {text!r:.80}")
            if item.strip():
                yield item.strip()
            item = ""
        else:
            item += character


def _option(argument: str, text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key.isidentifier() and equals and value):
        raise ValueError(f"{argument} must have options of the form key=value, got {text!r:.80}")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        if not BARE.fullmatch(value):
            raise ValueError(f"{argument} must have JSON or a word as {key}, got {value!r:.80}") from None
        return key, value


def _value(value: Any) -> str:
    if isinstance(value, str) and BARE.fullmatch(value):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)
