"""What only Unix has is used where it exists: elsewhere the package imports, and locks still lock."""

import ast
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from maclaurin.processes import lock

ROOT = Path(__file__).parent.parent / "maclaurin"
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
FUNCTIONS = {"fork", "getloadavg", "getuid", "killpg", "nice", "sched_getaffinity", "setsid", "wait3", "wait4"}


def guarded(tree):
    """Nodes inside of `try`, or of `with suppress`."""
    return {inner for node in ast.walk(tree) if isinstance(node, ast.Try | ast.With) for inner in ast.walk(node)}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_only_unix_has_is_asked_for_first(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    safe = guarded(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    asked = {
        name.value for node in calls if node.func.id == "hasattr" for name in node.args[1:] if isinstance(name, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in safe:
            assert not MODULES & {alias.name for alias in node.names}, node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr not in FUNCTIONS - asked, node.lineno


@pytest.fixture
def windows(monkeypatch):
    """A made-up msvcrt in the place of fcntl: it locks bytes of files, for the files of one process too."""
    held = {}

    def locking(descriptor, mode, size):
        assert (mode, size, os.lseek(descriptor, 0, os.SEEK_CUR)) == (2, 1, lock.BEYOND)
        file = os.fstat(descriptor).st_ino
        if held.get(file, descriptor) != descriptor and is_open(held[file], file):
            raise PermissionError(13, "Permission denied")
        held[file] = descriptor

    def is_open(descriptor, file):
        try:
            return os.fstat(descriptor).st_ino == file
        except OSError:
            return False

    monkeypatch.delattr(lock, "fcntl")
    monkeypatch.setattr(lock, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking), raising=False)


def test_locks_without_fcntl(tmp_path, windows):
    path = tmp_path / "lock"
    with lock.locked(path, "run"):
        with pytest.raises(ValueError, match=r"run is in use by process \d+ on"), lock.locked(path, "run"):
            pass
        with lock.exclusive(path) as free:
            assert not free
    with lock.locked(path):
        assert f"process {os.getpid()}" in path.read_text()
    lock.shared(path).close()
