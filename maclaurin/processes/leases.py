"""Work that processes on several machines share through a folder: each piece is one process's at a time.

A lease is a file `NAME.0`, made by its owner alone and touched by it while it works. Where it has not been touched for a
while, its owner is taken for dead, and whoever makes `NAME.1` first owns the piece. Clocks of machines are never compared.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

BEAT = 15.0  # seconds between two touches
EXPIRES = 120.0  # seconds without one


class Leases:
    """As a context: leases that are held at its end are given back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: dict[str, Path] = {}
        self._seen: dict[Path, tuple[int, float]] = {}  # last change, and since when it has been the last
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beating.join()
        for name in list(self.held):
            self.release(name)
        with suppress(OSError):  # others work here
            self.folder.rmdir()

    def take(self, name: str) -> bool:
        """Whether the piece is this process's from now on."""
        before = self._all(name)
        if before and not self._is_dead(before[-1]):
            return False
        path = self.folder / f"{name}.{len(before)}"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        except FileNotFoundError:  # one that has just ended found no lease here, and took the folder with it
            self.folder.mkdir(parents=True, exist_ok=True)
            return self.take(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"{os.getpid()} {_place()}")
        self.held[name] = path
        return True

    def release(self, name: str) -> None:
        """Once its result is in the folder, or to let others have it."""
        del self.held[name]
        for path in self._all(name):  # from the first on: as long as the last is there, nobody takes what follows it
            path.unlink(missing_ok=True)

    def _all(self, name: str) -> list[Path]:
        paths = (self.folder / f"{name}.{number}" for number in itertools.count())
        return list(itertools.takewhile(Path.exists, paths))

    def _is_dead(self, path: Path) -> bool:
        """Its owner was a process of this machine that is gone, or has not touched it for as long as this one has looked."""
        try:
            changed, words = path.stat().st_mtime_ns, path.read_text(encoding="utf-8").split(maxsplit=1)
        except OSError:
            return False  # given back by now
        if len(words) == 2 and words[0].isdigit() and words[1] == _place() and not _is_alive(int(words[0])):
            return True
        before, since = self._seen.get(path, (0, 0.0))
        if before != changed:
            self._seen[path] = changed, time.monotonic()
            return False
        return time.monotonic() - since > EXPIRES

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            for path in list(self.held.values()):
                with suppress(OSError):
                    os.utime(path)


def _place() -> str:
    """Where a process number means something: containers count processes of their own."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {os.readlink(namespace) if namespace.exists() else ''}".strip()


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":  # where this would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
