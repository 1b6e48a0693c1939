"""make installs what a target needs, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READY, TEST, LINT = ".venv/.ready", ".venv/.ready-test", ".venv/.ready-lint"


def planned(folder, target):
    """The commands that make would run."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not part of `make test`
    result = subprocess.run(["make", "-n", target], cwd=folder, env=alone, capture_output=True, text=True, check=True)
    return result.stdout.replace("\\\n", " ").splitlines()


def installed(folder, target):
    """What they would install."""
    return [line.split()[-1] for line in planned(folder, target) if " -m pip install " in line]


@pytest.fixture
def clone(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def made(folder, *stamps):
    for stamp in stamps:
        (folder / stamp).touch()


@pytest.mark.parametrize(
    ("target", "sets"),
    [
        ("compare", ["torch", "'.[report]'"]),
        ("lint", ["torch", "'.[report]'", "'maclaurin[lint]'"]),
        ("test", ["torch", "'.[report]'", "'maclaurin[test]'"]),
        ("setup", ["torch", "'.[report]'", "'maclaurin[test]'", "'maclaurin[lint]'"]),
    ],
)
def test_a_fresh_clone_gets_what_the_target_needs(clone, target, sets):
    assert installed(clone, target) == sets


def test_what_is_there_is_not_installed_again(clone):
    made(clone, READY)
    assert installed(clone, "compare") == []
    assert installed(clone, "test") == ["'maclaurin[test]'"]
    made(clone, TEST, LINT)
    assert installed(clone, "setup") == installed(clone, "test") == installed(clone, "lint") == []


def test_a_changed_requirement_is_installed_everywhere(clone):
    made(clone, READY, TEST, LINT)
    later = (clone / LINT).stat().st_mtime + 10
    os.utime(clone / "pyproject.toml", (later, later))
    assert installed(clone, "test") == ["torch", "'.[report]'", "'maclaurin[test]'"]


def test_every_installation_says_what_it_brings(clone):
    lines = planned(clone, "setup")
    assert sum(line.startswith("echo") and " GB" in line for line in lines) == 3
    assert not any("--quiet" in line for line in lines)
