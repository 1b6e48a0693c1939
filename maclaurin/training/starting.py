"""The process of a training run: a new Python, or a fork of one that has imported everything, which saves seconds per run.

`python -m maclaurin.training.starting` is the one that forks: a line of JSON on its standard input is a run, a line on its
standard output how that ended. A fork has peak memory of its own, and both end when the input does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from maclaurin.processes.children import APART, ended, lifeline
from maclaurin.processes.waiting import ASLEEP
from maclaurin.training.recipe import Recipe

# the frameworks of macOS must not be forked, and Windows has no such thing
FORKS = sys.platform == "linux" and hasattr(os, "fork") and hasattr(os, "killpg") and hasattr(os, "wait4")
DIVERGED = 3  # the exit code of a run whose loss is not finite
End = tuple[int, int | None]  # exit code and largest resident memory in bytes


class Process(Protocol):
    """Of one run. `stop` lets it save a checkpoint first."""

    def ended(self) -> End | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> None: ...


def environment(threads: int | None) -> dict[str, str]:
    """threads: of PyTorch, None for as many as there are cores."""
    return {**ASLEEP, **os.environ, **({} if threads is None else {"OMP_NUM_THREADS": str(threads)})}


class Alone:
    """A run in a Python of its own."""

    def __init__(self, recipe: Recipe, *, resume: bool, threads: int | None = None) -> None:
        words = [json.dumps(dataclasses.asdict(recipe)), *["--resume"] * resume]
        self.open = ExitStack()
        with open(Path(recipe.output) / "output.txt", "w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "maclaurin.training.child", *words],
                stdin=self.open.enter_context(lifeline()),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment(threads),
                **APART,
            )

    def ended(self) -> End | None:
        end = ended(self.process)
        if end is not None:
            self.open.close()
        return end

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> None:
        self.process.wait()
        self.open.close()


class Server:
    """A process that has imported everything and forks itself for one run after the other."""

    def __init__(self, threads: int | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "maclaurin.training.starting"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(threads),
            **APART,
        )

    def start(self, recipe: Recipe, *, resume: bool) -> Forked:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([dataclasses.asdict(recipe), resume]).encode() + b"\n")
        self.process.stdin.flush()
        return Forked(self)

    def close(self) -> None:
        """A run that goes on in it saves a checkpoint and ends."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def wait(self) -> None:
        self.process.wait()


class Forked:
    """A run of a server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ended(self) -> End | None:
        pipe = self.server.process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], 0)[0]:
            return None
        line = pipe.readline()
        if not line:  # the server is gone, and its run with it
            return self.server.process.wait() or 1, None
        code, peak_bytes = json.loads(line)
        return code, peak_bytes

    def stop(self) -> None:
        self.server.close()

    def kill(self) -> None:
        os.killpg(self.server.process.pid, signal.SIGKILL)

    def wait(self) -> None:
        self.server.wait()


def serve() -> None:
    """Fork for every run, and say how it ended. Nothing here may start a thread: forks would lack it."""
    from maclaurin.training import child

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of its input ends it, after its run
    for line in sys.stdin:
        fields, resume = json.loads(line)
        recipe = Recipe(**fields)
        pid = os.fork()
        if not pid:
            _in_fork(recipe, resume, child.main)
        _, status, usage = os.wait4(pid, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024]), flush=True)


def _in_fork(recipe: Recipe, resume: bool, main: Any) -> None:
    """The run, with an output of its own; never returns."""
    code = 1
    try:
        output = os.open(Path(recipe.output) / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        main(recipe, resume=resume)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
