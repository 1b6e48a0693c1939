"""Requests to stop: Ctrl-C, and SIGTERM, which schedulers and `kill` send. Running work is cleaned up first."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, NoReturn


def exit_code(number: int) -> int:
    """Of a command that a signal has stopped, as shells have it."""
    return 128 + number


class Terminated(SystemExit):
    """SIGTERM."""

    def __init__(self) -> None:
        super().__init__(exit_code(signal.SIGTERM))


STOPS = (KeyboardInterrupt, Terminated)


def end_stopped(stop: BaseException, what_now: str) -> NoReturn:
    """The end of a command that was asked to stop: one sentence, and the exit code that shells give the signal."""
    print(f"maclaurin: stopped; {what_now}", file=sys.stderr)
    raise SystemExit(exit_code(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)) from None


def raise_on_terminate() -> None:
    """From now on SIGTERM raises an exception, so that children are ended, files closed, and a sentence is printed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: Any) -> None:
    raise Terminated
