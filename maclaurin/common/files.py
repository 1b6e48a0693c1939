"""Files that are complete or absent: no reader, and no process that starts after an interruption, finds half of one.

What is read may come from anybody: a file that is not what it should be gives one sentence with its name.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON list"}
LONGEST_REASON = 300  # characters of somebody else's message: some quote the whole file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which takes its place when it is complete; the old one stays until then."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")  # JSON may hold halves of characters


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2))


def read_json(path: Path, kind: type = dict) -> Any:
    """What a JSON file holds, which must be an object, or a list with `kind=list`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be read") from error
    except ValueError as error:  # not UTF-8, not JSON, or a number with thousands of digits
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold {KINDS[kind]}, got {type(content).__name__}")
    return content


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Wraps library code that reads a file or folder: whatever it raises becomes one sentence that begins with the name.

    Parsers raise anything on unforeseen input, including panics of Rust, which are not Exceptions.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
        line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        kind = "" if isinstance(error, ValueError | OSError) and line else f"{type(error).__name__} "
        raise ValueError(f"{path} cannot be read: {kind}{line[:LONGEST_REASON]}".rstrip()) from error
