"""Processes that end with the one that started them, however that one ends.

A child has the reading end of a pipe as its standard input; the writing end is its parent's alone and closes with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

# for `Popen`: Ctrl-C goes to this process alone, which then ends its children. 0x200 is CREATE_NEW_PROCESS_GROUP
APART: dict[str, Any] = {"creationflags": 0x200} if sys.platform == "win32" else {"start_new_session": True}


def ended(process: subprocess.Popen[Any]) -> tuple[int, int | None] | None:
    """The exit code of a child and its largest resident memory in bytes, which Windows does not tell; None while it runs."""
    if not hasattr(os, "wait4"):
        code = process.poll()
        return None if code is None else (code, None)
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    unit = 1 if sys.platform == "darwin" else 1024
    return (os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit) if pid else None


@contextmanager
def lifeline() -> Iterator[int]:
    """Standard input for a child that calls `end_with_parent`, open as long as this process and the block last."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def end_with_parent() -> None:
    """Called first in a child: once its lifeline closes it gets SIGTERM, on which a training run saves a checkpoint."""
    threading.Thread(target=_watch_input, daemon=True).start()


def end_with_pool() -> None:
    """The same for a process of a pool, which knows its parent."""
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_input() -> None:
    while os.read(0, 4096):
        pass
    _terminate()


def _watch_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    _terminate()


def _terminate() -> None:
    """To the process, so that a main thread that waits is woken; Windows would end it at once, without its handlers."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
