"""Files that are whole or not there: whoever reads, or starts again after an interruption, never finds half of one."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """The old file stays until the new one is complete. Folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2))
