"""Requests to stop: Ctrl-C, SIGTERM, which schedulers and `kill` send, and SIGUSR1, by which Slurm can warn of the end of a
job. Running work is cleaned up first.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, NoReturn


def exit_code(number: int) -> int:
    """Of a command that a signal has stopped, as shells have it."""
    return 128 + number


TERMINATE = (signal.SIGTERM, *((signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()))  # which Windows has not
SIGNALS = (signal.SIGINT, *TERMINATE)


class Terminated(SystemExit):
    """SIGTERM or SIGUSR1."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(exit_code(number))


STOPS = (KeyboardInterrupt, Terminated)


def end_stopped(stop: BaseException, what_now: str) -> NoReturn:
    """The end of a command that was asked to stop: one sentence, and the exit code that shells give the signal."""
    print(f"maclaurin: stopped; {what_now}", file=sys.stderr)
    raise SystemExit(stop.code if isinstance(stop, Terminated) else exit_code(signal.SIGINT)) from None


def raise_on_terminate() -> None:
    """From now on these signals raise an exception, so that children are ended, files closed, and a sentence is printed."""
    if threading.current_thread() is threading.main_thread():
        for number in TERMINATE:
            signal.signal(number, _terminated)


def _terminated(number: int, frame: Any) -> None:
    raise Terminated(number)
