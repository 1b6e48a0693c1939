"""Threads that wait sleep: beside other work, those that spin would take its core and lose theirs."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks libgomp what it has read")


def spin_count(name, **environment):
    """How often a thread looks before it sleeps, as OpenMP has understood it once the command has imported torch."""
    program = f"from maclaurin.cli import Shell; Shell.load({name!r}); import torch"
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_WAIT", "GOMP_SPIN"))}
    environment = known | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment).stderr
    (line,) = {line.strip() for line in said.splitlines() if "GOMP_SPINCOUNT" in line}
    return int(line.split("'")[1])


def test_commands_wait_asleep():
    assert spin_count("train") == 0


def test_what_the_user_has_chosen_stays():
    assert spin_count("train", OMP_WAIT_POLICY="ACTIVE") > 0


def test_measurements_have_threads_as_libraries_have_them():
    assert spin_count("bench") > 0
