"""Commands as a user types them, in this process: a new one would take seconds to import what is there already."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess, run
from unittest.mock import patch

from maclaurin.cli import main


def command(*arguments: object) -> list[str]:
    """For a process of its own, where that is what is tested."""
    return [sys.executable, "-m", "maclaurin.cli", *map(str, arguments)]


def in_a_process(*arguments: object, text: str | None = None) -> CompletedProcess[str]:
    return run(command(*arguments), capture_output=True, text=True, input=text)


def typed(*arguments: object, text: str = "") -> CompletedProcess[str]:
    """What the command printed, and its exit code. text: what it reads from standard input."""
    line = ["maclaurin", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with patch("sys.argv", line), patch("sys.stdin", io.StringIO(text)), redirect_stdout(out), redirect_stderr(err):
        try:
            main(line[1:])
        except SystemExit as end:
            code = end.code
    return CompletedProcess(line, code if isinstance(code, int) else 1, out.getvalue(), err.getvalue())
