"""The Triton kernels in Triton's interpreter, chosen before they are defined: `test_gpu.py` starts a process for it."""

from maclaurin.ops import gpu

collect_ignore_glob = [] if gpu.INTERPRETED else ["test_*.py"]
