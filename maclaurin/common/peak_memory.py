"""The largest resident memory of this process, from a given moment on where the system can reset an earlier peak, and of a
child that has ended.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # Windows
    import resource

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def resident_bytes() -> int:
    """Resident bytes now; the peak is counted from here on where the system can reset an earlier one."""
    if not CLEAR.exists():
        return peak_bytes()
    CLEAR.write_text("5")
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0]) * 1024


def peak_bytes() -> int:
    if CLEAR.exists():
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    if "resource" in globals():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    return _windows_peak(-1)  # this process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, int] | None:
    """The exit code of a child and the peak of its resident bytes, or None while it runs."""
    if hasattr(os, "wait4"):
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        return (os.waitstatus_to_exitcode(status), usage.ru_maxrss * UNIT) if pid else None
    code = process.poll()
    return None if code is None else (code, _windows_peak(int(process._handle)))  # type: ignore[attr-defined]


def _windows_peak(process: int) -> int:
    """PeakWorkingSetSize of PROCESS_MEMORY_COUNTERS, which has two 32-bit numbers and eight sizes."""
    counters = (ctypes.c_size_t * 9)()
    measure = ctypes.windll.kernel32.K32GetProcessMemoryInfo  # type: ignore[attr-defined]
    measure.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    measure(process, counters, ctypes.sizeof(counters))
    return int(counters[1])
