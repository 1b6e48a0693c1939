"""A process that runs one case after another: a line `target number` comes in, a line of JSON goes out.

It may die of a case. Whoever started it finds the Python stack in what it left on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import json
import os
import re
import resource
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.case import READY, Draw, Failure
from fuzz.targets import TARGETS

MOST_BYTES = 2**30  # that one case may need
PROJECT = str(Path(__file__).parents[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", help="a folder that has another build of the native library as lib/*.so")
    parser.add_argument("--without", action="append", default=[], help="module:function, a check that is taken out")
    arguments = parser.parse_args()
    faulthandler.enable()
    # whatever a case prints belongs to the log
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare(arguments.library, arguments.without)
    print(READY, file=answers, flush=True)
    for line in sys.stdin:
        name, number = line.split()
        print(json.dumps(attempt(name, int(number))), file=answers, flush=True)


def prepare(library: str | None, without: list[str]) -> None:
    """The package as the cases find it: one thread, and uninitialised memory poisoned with NaN."""
    import_package(library)
    import torch

    from tests import poison

    torch.set_num_threads(1)
    poison.install()
    for check in without:
        module, function = check.split(":")
        setattr(importlib.import_module(module), function, lambda *args, **kwargs: None)


def import_package(library: str | None) -> None:
    """maclaurin, with one more folder in which it looks for its library."""
    spec = importlib.util.find_spec("maclaurin")
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        raise ImportError("maclaurin is not installed here: run `make setup`")
    if library is not None:
        spec.submodule_search_locations.insert(0, library)
    package = importlib.util.module_from_spec(spec)
    sys.modules["maclaurin"] = package
    spec.loader.exec_module(package)


@cache
def loaded(name: str) -> Any:
    return TARGETS[name].load()


def attempt(name: str, number: int) -> dict[str, Any]:
    """How a case ended: {"end": "right" or "refused"}, or {"cause", "detail"} of its failure."""
    run = loaded(name)
    draw = Draw(name, number)
    before = reset_peak()
    try:
        end = run(draw)
    except Exception as error:
        return {"cause": cause(draw, error), "detail": told(draw, error)}
    grown = peak() - before
    if grown > MOST_BYTES:
        return {"cause": "more than 1 GB of memory", "detail": f"{grown / 2**30:.1f} GB were needed\n{draw.chosen}"}
    return {"end": end}


def told(draw: Draw, error: BaseException) -> str:
    chosen = ", ".join(f"{name}={value!r}" for name, value in draw.chosen.items())
    return f"{chosen}\n{''.join(traceback.format_exception(error))}".encode("utf-8", "backslashreplace").decode()


def cause(draw: Draw, error: BaseException) -> str:
    """The same for two failures that are likely one fault: where it was raised, and the message without its numbers.

    A law that did not hold is told with the op or mixer that broke it; where the package raised says that itself.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PROJECT)]
    own = [f for f in frames if Path(f.filename).is_relative_to(f"{PROJECT}/maclaurin")] or frames
    where = f"{Path(own[-1].filename).relative_to(PROJECT)}:{own[-1].name}" if own else "?"
    message = (str(error).splitlines() or [""])[0].encode("ascii", "backslashreplace").decode()
    message = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|-?\d[\w.+-]*|\b(inf|nan)\b", "#", message)[:160]
    what = f"{draw.chosen['op']}: " if isinstance(error, Failure) and "op" in draw.chosen else ""
    return f"{what}{type(error).__name__} in {where}: {message}"


def reset_peak() -> int:
    """The memory in use now, from which the peak is counted; where the kernel cannot reset the peak, the peak so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
