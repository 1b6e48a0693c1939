"""Peaks are counted, those before a measurement are not."""

import subprocess
import sys

import pytest

from maclaurin.common.peak_memory import CLEAR

# in a process of its own: another test's memory would be found there
CODE = """
from maclaurin.common.peak_memory import peak_bytes, resident_bytes
bytearray(b"x") * (512 * 2**20)
before = resident_bytes()
bytearray(b"x") * (64 * 2**20)
print(peak_bytes() - before)
"""


@pytest.mark.skipif(not CLEAR.exists(), reason="this system cannot forget an earlier peak")
def test_only_the_peak_since_the_measurement_began_is_counted():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert 60 * 2**20 < int(found) < 100 * 2**20
