"""Memory that is freed and soon allocated again should not go back to the kernel in between.

glibc gives tensors above 32 MB back to the system the moment they are freed, and every training step then faults
their pages in again one by one: a fifth to a half of the time of a layer at 16384 tokens. The commands of this package,
which own their process, keep such memory; as an imported library it does not change the allocator of its host.

On a GPU, PyTorch keeps it. What is lost there is memory between blocks of different sizes, as sequences of many lengths
leave them; segments that grow have no such gaps.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)
_NEVER = 2**31 - 1
CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


def keep_freed_memory() -> bool:
    """Let this process keep what it frees for what it allocates next. False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library of the whole process
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))


def grow_segments() -> None:
    """Let PyTorch's allocator on a GPU grow its segments, unless the environment says otherwise. Before its first tensor."""
    os.environ.setdefault(CUDA_VARIABLE, "expandable_segments:True")
