"""The kernels on aarch64: cross-compiled, and run under qemu over hostile shapes against float64."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")


@pytest.mark.slow
def test_kernels_are_right_on_arm():
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt install g++-aarch64-linux-gnu qemu-user cmake")
    done = subprocess.run([ROOT / "scripts" / "arm.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("portable: done") == 4
