"""How many cores there are to use, which containers and batch systems make fewer than the machine has."""

from __future__ import annotations

import os


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
