"""Whether this CPU can multiply bfloat16 matrices: some advertise AMX under a hypervisor that forbids it, and then the
process dies of an illegal instruction. Only a child process can find out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

SAFE_ISA = "AVX512_CORE_BF16"  # what ONEDNN_MAX_CPU_ISA must be, before torch is imported, where AMX is forbidden
PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"


def bf16_verdict() -> str:
    """ "ok", or what happens and what helps."""
    if _survives(os.environ):
        return "ok"
    if _survives({**os.environ, "ONEDNN_MAX_CPU_ISA": SAFE_ISA}):
        return f"kills the process, unless ONEDNN_MAX_CPU_ISA={SAFE_ISA} is set before torch is imported"
    return "kills the process: use float32"


def _survives(environment: Mapping[str, str]) -> bool:
    return subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True).returncode == 0
