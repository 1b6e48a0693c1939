"""What goes on, on standard error: a line that changes on a terminal, and elsewhere a new line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

from rich.console import Console

Item = TypeVar("Item")
SECONDS = 10.0  # between lines
TICK = 0.5  # between two looks at the clock


class Every:
    """True at most once in so many seconds, the first of which begin now."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = SECONDS if seconds is None else seconds
        self.last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


class Status:
    """Called with what is true now; work that is done before the first line is due says nothing."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.spinner = self.console.status("") if self.console.is_terminal else None
        self.due = Every()

    def __enter__(self) -> Self:
        if self.spinner is not None:
            self.spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.spinner is not None:
            self.spinner.stop()

    def __call__(self, line: str) -> None:
        if self.spinner is not None:
            self.spinner.update(line)
        elif self.due():
            self.console.print(line, markup=False, soft_wrap=True)


@contextmanager
def running(what: str) -> Iterator[None]:
    """Says for how long the block has been running, while it does."""
    done, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(TICK):
            status(f"{what}: {time_text(time.monotonic() - began)}")

    with Status() as status:
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def counted(items: Iterable[Item], what: str, unit: str) -> Iterator[Item]:
    """The items, and how many of them are done."""
    with Status() as status:
        for count, item in enumerate(items):
            status(f"{what}: {count:,} {unit}")
            yield item


def time_text(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
