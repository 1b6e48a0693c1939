"""The kernels on aarch64, cross-compiled and run under qemu: over hostile shapes against float64, and their own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NEEDED = ("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")


def run(script, needed):
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt install g++-aarch64-linux-gnu qemu-user cmake")
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([SCRIPTS / script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_are_right_on_arm():
    printed = run("arm.sh", NEEDED)
    assert printed.count("portable: done") == printed.count("== maclaurin_") > 0


@pytest.mark.slow
def test_the_tests_of_the_kernels_pass_on_arm():
    assert " passed" in run("arm_tests.sh", (*NEEDED, "apt-get", "dpkg"))
