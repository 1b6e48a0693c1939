"""Up to how many queries the direct sum over all keys is the faster form, by backend: measured, in this one place.

`maclaurin doctor --tune` measures it again for the machine it runs on and stores what it found beside the cached tokens.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """Tokens: start + per_feature · features."""

    start: int
    per_feature: float


# `maclaurin bench attention` prints the times of both forms that these come from. The native start is two chunks, because a
# chunk meets its own keys directly in any case; its slope is that of the multiplications, 2 features (V+1) against T·V.
DIRECT_QUERIES = {"torch": Line(0, 0.25), "native": Line(256, 1.8)}


def longest_direct(backend: str, features: int) -> int:
    """The largest number of queries for which the direct sum beats a memory of so many features."""
    line = _tuned().get(backend) or DIRECT_QUERIES[backend]
    return line.start + int(line.per_feature * features)


def tuned_file() -> Path:
    return Path(os.environ.get("MACLAURIN_CACHE") or Path.home() / ".cache" / "maclaurin") / "crossover.json"


def store(lines: dict[str, Line]) -> None:
    """What `longest_direct` uses from now on, here and in later processes."""
    path = tuned_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({backend: [line.start, line.per_feature] for backend, line in lines.items()}))
    temporary.replace(path)
    _tuned.cache_clear()


@cache
def _tuned() -> dict[str, Line]:
    try:
        stored = json.loads(tuned_file().read_text())
        return {backend: Line(int(start), float(slope)) for backend, (start, slope) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # never tuned, or not by this version
