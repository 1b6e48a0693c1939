"""A file of the project, mutated, and read by whoever reads it: as usual, or refused in one sentence with exit code 2.

Whatever a file holds, no code of it runs, nothing is written outside of the folder that holds it, and no more than 1 GB of
memory is asked for.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import torch

from fuzz import readers
from fuzz.case import REFUSED, RIGHT, Draw, Failure, check_sentence
from fuzz.kinds import Kind
from fuzz.mutate import Trap, mutate
from fuzz.specimens import HOME, specimen

MOST_BYTES = 2**30
whole = cache(specimen)


def case(draw: Draw, kind: Kind) -> str:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        root = Path(name).resolve()
        trap = Trap(root)
        home = trap.home
        shutil.copytree(whole(kind.home), home)
        for module in ("evil.py", "model/evil.py"):
            if (home / module).parent.is_dir():
                (home / module).write_text(trap.code)
        files = sorted({path for pattern in kind.files for path in home.glob(pattern)})
        if kind.closed:
            shutil.copytree(home, trap.outside)
            forget_reads(trap.outside)
        path = draw.choice(files)
        draw.note("file", str(path.relative_to(home)))
        mutate(draw, path, trap)
        for text in home.rglob("*.json"):
            if text.is_file() and not text.is_symlink():
                text.write_bytes(text.read_bytes().replace(HOME.encode(), str(home).encode()))
        (root / "cwd").mkdir()
        reader = draw.one("reader", kind.readers)
        before = {path for path in root.rglob("*") if home not in path.parents}
        end = ended(lambda: getattr(readers, reader)(home), root, path)
        if trap.marker.exists():
            raise Failure(f"code of {path.name} was run")
        if stray := {path for path in root.rglob("*") if home not in path.parents} - before:
            raise Failure(
                f"written outside of the output folder: {', '.join(sorted(str(p.relative_to(root)) for p in stray))}"
            )
        if read := sorted(path.name for path in trap.outside.rglob("*") if path.is_file() and path.stat().st_atime_ns):
            raise Failure(f"read outside of its folder: {', '.join(read)}")
        return end


def forget_reads(folder: Path) -> None:
    """No file there has been read yet: the time of the last access is zero, where file systems keep it."""
    for path in folder.rglob("*"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns))


def ended(read: Callable[[], None], root: Path, path: Path) -> str:
    """How the shell would end: RIGHT for exit code 0, REFUSED for one sentence and exit code 2."""
    try:
        with _alone(root), _little_memory():
            read()
    except SystemExit as end:
        if end.code in (0, None):
            return RIGHT
        refused = end.code == 2 or isinstance(end.__cause__, FloatingPointError)  # training that broke ends with 1
        if not refused:
            raise Failure(f"exit code {end.code}") from end
        if end.__cause__ is not None:
            _check_refusal(end.__cause__, path)
        return REFUSED
    except (ValueError, TypeError, OSError) as error:  # what the shell turns into its sentence
        _check_refusal(error, path)
        return REFUSED
    return RIGHT


def _check_refusal(error: BaseException, path: Path) -> None:
    """One sentence; and what a parser says of some text is only of use with the name of the file."""
    check_sentence(error)
    of_a_parser = isinstance(error, UnicodeError | json.JSONDecodeError)
    if of_a_parser and path.name not in str(error) and str(path.parent) not in str(error):
        raise Failure(f"refused without the name of the file: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """In a folder of its own, with nobody to ask but somebody who always says yes."""
    before = os.getcwd()
    os.chdir(root / "cwd")
    screen = io.StringIO()
    try:
        with (
            mock.patch.dict(os.environ, {"MACLAURIN_CACHE": str(root / "home" / "cache")}),
            mock.patch.object(sys, "stdin", io.StringIO("y\n" * 100)),
            contextlib.redirect_stdout(screen),
            contextlib.redirect_stderr(screen),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """1 GB more than there is now: an allocation above that fails, instead of being noticed later or never."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text()) if sys.platform == "linux" else None
    if found:
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(found[1]) + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
