"""Who made the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def made_by_intel() -> bool:
    """Linux names the maker in a file only, other systems in `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "GenuineIntel" in platform.processor()
    return any(line.startswith("vendor_id") and line.endswith("GenuineIntel") for line in lines)
