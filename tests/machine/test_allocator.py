"""Freed memory is kept by the processes that this package owns."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
import maclaurin.ops  # as in every command: a heap that is used has room for small things between the large ones
from maclaurin.machine.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    torch.ones(16 * 2**20)  # 64 MB
for _ in range(12):  # until one of the places that they leave between small blocks fits the next
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is the one that gives memory back")
def test_large_tensors_are_not_faulted_in_again():
    """Where nobody keeps it, four tensors of 64 MB cost a fault a page, of 2 MB if pages are large."""
    assert faults("keep") < 50 < 100 < faults("leave")
