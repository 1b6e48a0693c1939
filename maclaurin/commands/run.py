"""`maclaurin run`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

SWITCH = "MACLAURIN_ACCELERATE"  # startup/maclaurin_auto.py reads it in any process


def run(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT ...", help="What `python` is given: a script or -m MODULE.")
    ],
) -> None:
    """Run a Python script in which linear models of transformers take the kernels of this package."""
    if find_spec("maclaurin_auto") is None:
        raise ValueError(
            "maclaurin_auto, installed beside maclaurin, is missing from this environment: install maclaurin again"
        )
    sys.stdout.flush()
    # in place of this process: signals, exit codes and tracebacks are the script's, and its children are accelerated too
    os.execve(sys.executable, [sys.executable, *script], os.environ | {SWITCH: "1"})


# flags behind the script are the script's
run.context_settings = {  # type: ignore[attr-defined]
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "token_normalize_func": str,
}
