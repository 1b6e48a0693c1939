"""Sizes in words."""

from __future__ import annotations


def size_text(nbytes: int) -> str:
    """8912896 -> "8.5 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
