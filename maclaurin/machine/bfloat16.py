"""Whether this CPU can multiply bfloat16 matrices. Some advertise AMX where the system forbids it; PyTorch's CPU library
relies on that, and the process is killed by an illegal instruction.

The system can be asked what it allows, so the library's limit is set when `maclaurin` is imported, if that comes before
torch. Only a trial in a child process shows what really happens.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

VARIABLE = "ONEDNN_MAX_CPU_ISA"
SAFE_ISA = "AVX512_CORE_BF16"  # the highest that does not use AMX
PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"

ARCH_PRCTL, GET_XCOMP_SUPPORTED, TILE_DATA = 158, 0x1021, 18  # Linux on x86-64


def limit_isa() -> None:
    """Keep PyTorch's CPU library from AMX where the system does not allow it. It reads the variable as torch is imported."""
    if amx_is_forbidden() and "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, SAFE_ISA)


@cache
def amx_is_forbidden() -> bool:
    """Whether the system keeps no AMX registers, whatever the CPU says of itself."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    features = ctypes.c_uint64()
    failed = ctypes.CDLL(None).syscall(ARCH_PRCTL, GET_XCOMP_SUPPORTED, ctypes.byref(features))
    return bool(failed) or not features.value >> TILE_DATA & 1


@cache
def bf16_verdict() -> str:
    """ "ok", or what happens and what helps."""
    if _survives(os.environ):
        return "ok"
    if _survives({**os.environ, VARIABLE: SAFE_ISA}):
        return f"kills the process, unless {VARIABLE}={SAFE_ISA} is set, or maclaurin imported, before torch is imported"
    return "kills the process: use float32"


@cache
def has_bf16() -> bool:
    """Whether this machine is made for products of bfloat16, which then take a third of the time, and survives them."""
    import torch

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    made_for_it = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return made_for_it and (VARIABLE in os.environ or not amx_is_forbidden() or bf16_verdict() == "ok")


def check_bf16() -> None:
    """One sentence instead of a process that dies. Where nothing is suspicious, nothing is tried."""
    if amx_is_forbidden() and VARIABLE not in os.environ and (verdict := bf16_verdict()) != "ok":
        raise ValueError(f"a bfloat16 matrix product on this CPU {verdict}")


def _survives(environment: Mapping[str, str]) -> bool:
    return subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True).returncode == 0
