"""One process at a time: a lock on a file, which the system releases when its holder ends, however that happens."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 300  # characters of a holder's name: the file may hold anything


@contextmanager
def locked(path: Path, what: str = "") -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing and stays.

    what: what the lock is for; if another process holds it, a ValueError names `what` and that process and host.
    Without `what`, this waits until the lock is free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8", errors="replace") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (fcntl.LOCK_NB if what else 0))
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
