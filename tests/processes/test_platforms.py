"""Everything can be imported, and locks and children work, where POSIX is missing. Windows is simulated in a process."""

import subprocess
import sys
import textwrap

import pytest

WINDOWS = """
import ctypes, multiprocessing.connection, os, pathlib, platform, signal, socket, subprocess, sys, tempfile, time

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix_ipc"):
            raise ImportError(f"No module named {name!r}")

def as_on_windows(msvcrt=None):
    \"\"\"After torch and its company, which have their own ways there.\"\"\"
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    for name in ("fork", "wait4", "getloadavg", "sched_getaffinity", "getuid", "killpg", "WNOHANG"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP"):
        if hasattr(signal, name):
            delattr(signal, name)
    sys.platform = "win32"
    if msvcrt is not None:
        sys.modules["msvcrt"] = msvcrt

import types
locks = types.ModuleType("msvcrt")
locks.LK_NBLCK, locks.held = 2, set()

def locking(number, mode, count):
    inode = os.fstat(number).st_ino
    if inode in locks.held:
        raise PermissionError(13, "held")
    locks.held.add(inode)

locks.locking = locking
"""


def on_windows(code):
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS + textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported_without_posix():
    """torch, transformers and datasets come first: what they do on Windows is theirs."""
    on_windows("""
        import pkgutil, importlib
        import torch, transformers.trainer, transformers.cli.serving.server, transformers.cli.serving.response
        import datasets, accelerate, rich.console, rich.live, typer, tokenizers, uvicorn, fastapi, prometheus_client
        as_on_windows(locks)
        import maclaurin
        skipped = ("maclaurin.commands.lm_eval", "maclaurin.evals.harness")
        for module in pkgutil.walk_packages(maclaurin.__path__, "maclaurin."):
            if module.name not in skipped and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        import maclaurin.training.child, maclaurin.training.compare, maclaurin.cli
    """)


def test_a_lock_holds_by_bytes_where_there_is_no_flock(tmp_path):
    printed = on_windows(f"""
        as_on_windows(locks)
        from maclaurin.processes.lock import locked
        path = pathlib.Path({str(tmp_path / "lock")!r})
        with locked(path, "the run"):
            try:
                with locked(path, "the run"):
                    print("twice")
            except ValueError as error:
                print(error)
    """)
    assert printed.startswith("the run is in use by process ")


def test_a_child_and_its_end_are_seen_without_wait4():
    printed = on_windows("""
        as_on_windows(locks)
        from maclaurin.processes import children
        assert "start_new_session" not in children.APART
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        while (end := children.ended(process)) is None:
            time.sleep(0.01)
        print(end)
    """)
    assert printed.strip() == "(3, None)"


def test_what_windows_cannot_measure_is_absent_or_one_sentence():
    printed = on_windows("""
        as_on_windows(locks)
        from maclaurin.common import cores, peak_memory
        peak_memory.CLEAR = pathlib.Path("nowhere")
        try:
            peak_memory.peak_bytes()
        except OSError as error:
            print(error)
        assert cores.cores() >= 1
    """)
    assert printed.strip() == "the peak of a process's memory is measured on Linux and macOS only"


def test_the_allocator_is_left_alone_where_the_process_has_no_library_of_its_own(monkeypatch):
    from maclaurin.machine import allocator

    def cdll(name):  # as ctypes does on Windows
        return "/" in name

    monkeypatch.setattr(allocator.ctypes, "CDLL", cdll)
    assert allocator.keep_freed_memory() is False


@pytest.mark.skipif(sys.platform == "win32", reason="os.wait4")
def test_the_end_of_a_child_has_its_exit_code_and_peak():
    from maclaurin.processes.children import ended

    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    while (end := ended(process)) is None:
        pass
    code, peak = end
    assert code == 3 and peak > 2**20
