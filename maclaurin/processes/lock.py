"""One process at a time: a lock on a file, which the system releases when its holder ends, however that happens."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

LONGEST = 300  # characters of a holder's name: the file may hold anything
BEYOND = 2**20  # Windows locks bytes, and nobody else can read them: one behind all text is locked
POLL = 0.1  # seconds


@contextmanager
def locked(path: Path, what: str = "") -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing and stays.

    what: what the lock is for; if another process holds it, a ValueError names `what` and that process and host.
    Without `what`, this waits until the lock is free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as stream:
        try:
            _take(stream, wait=not what)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(LONGEST).strip() or "another process"
            raise ValueError(f"{what} is in use by {holder}: wait until it has ended, or end it") from None
        except OSError as error:
            print(f"maclaurin: {path} cannot be locked ({error.strerror}): start no second process here", file=sys.stderr)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield


def shared(path: Path) -> TextIO:
    """The file, open; until it is closed, `exclusive` fails for it. Any number of processes may share it.

    Where it cannot be written nobody else can either, and there is nothing to share.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = _opened(path)
    except OSError:
        return open(os.devnull, encoding="utf-8")
    with suppress(OSError):  # where files cannot be locked, `exclusive` fails too
        _take(stream, shared=True)
    return stream


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Whether no process shares this file, and as long as the block lasts none can begin to."""
    with _opened(path) as stream:
        try:
            _take(stream, wait=False)
        except OSError:
            yield False
        else:
            yield True


def _opened(path: Path) -> TextIO:
    return open(path, "a+", encoding="utf-8", errors="replace")


def _take(stream: TextIO, *, wait: bool = True, shared: bool = False) -> None:
    """BlockingIOError where another process has it and this does not wait; another OSError where files have no locks."""
    if "fcntl" in globals():
        fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    elif not shared:  # Windows has no shared locks, and does not remove files that are open
        _take_byte(stream, wait)


def _take_byte(stream: TextIO, wait: bool) -> None:
    while True:
        os.lseek(stream.fileno(), BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            return
        except PermissionError as error:
            if not wait:
                raise BlockingIOError from error
        time.sleep(POLL)
