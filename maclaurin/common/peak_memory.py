"""The largest resident memory of this process, from a given moment on where the system can reset an earlier peak.

Windows, which has no module `resource`, is not asked: commands that measure memory refuse to run there.
"""

from __future__ import annotations

import sys
from pathlib import Path

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def resident_bytes() -> int:
    """Resident bytes now; the peak is counted from here on where the system can reset an earlier one."""
    if not CLEAR.exists():
        return peak_bytes()
    CLEAR.write_text("5")
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0]) * 1024


def peak_bytes() -> int:
    if CLEAR.exists():
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    try:
        import resource
    except ImportError:
        raise OSError("the peak of a process's memory is measured on Linux and macOS only") from None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
