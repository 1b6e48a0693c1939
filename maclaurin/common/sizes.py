"""Sizes in words."""

from __future__ import annotations

import re

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}  # of 1024


def size_text(nbytes: int) -> str:
    """8912896 -> "8.5 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def size_bytes(name: str, text: str) -> int:
    """ "20GB" -> 21474836480: units are powers of 1024, with or without "B" or "iB"."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{name} must be a size such as 500MB or 20GB, got {text!r:.40}")
    return int(float(match[1]) * 1024 ** POWERS[match[2]])
