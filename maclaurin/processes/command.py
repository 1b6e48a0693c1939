"""The command that started this process, as it can be typed again."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Of this process, or with other arguments."""
    return shlex.join([*_program(), *(sys.argv[1:] if arguments is None else arguments)])


def _program() -> list[str]:
    """`maclaurin` where the shell finds it, the path to it where it does not, or the module that was started."""
    called = sys.argv[0]
    if os.path.basename(called) != "maclaurin":
        module = getattr(sys.modules["__main__"].__spec__, "name", "")
        is_shell = module.startswith("maclaurin.") and module.endswith((".cli", ".__main__"))
        return [sys.executable, "-m", module.removesuffix(".__main__")] if is_shell else ["maclaurin"]
    found = shutil.which("maclaurin")
    if found is not None and os.path.exists(called) and os.path.samefile(found, called):
        return ["maclaurin"]
    return [min(os.path.relpath(called), os.path.abspath(called), key=len)]
