"""Which part of some work a process begins with, where several share it: `I/N` is the I-th of N."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
WHOLE = "1/1"


def read(shard: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard, re.ASCII)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be I/N with I from 1 to N, such as 2/8, got {shard!r}")
    return part, parts


def own_first(items: Sequence[Item], shard: str) -> list[Item]:
    """Every N-th item from the I-th on, then those of the shards that follow: N processes begin with different ones."""
    part, parts = read(shard)
    return [item for turn in range(parts) for item in items[(part - 1 + turn) % parts :: parts]]
