"""Several processes of one job, as torchrun would start them: forks of this one, which has imported everything already."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def on_ranks(count: int, work: Callable[[int], Any], *, group: bool = False) -> list[Any]:
    """What `work(rank)` returns in each process; one that fails fails the test with its traceback.

    group: whether the processes are to begin with a process group. Without one, `work` makes it.
    """
    ended = _started(count, work, group)
    failed = [result for result in ended if isinstance(result, BaseException)]
    if failed:
        raise AssertionError("\n".join(str(error) for error in failed))
    return ended


def ends_on_ranks(count: int, work: Callable[[int], Any]) -> list[int]:
    """The exit code of each process, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in _forked(count, work, group=False)]


def _started(count: int, work: Callable[[int], Any], group: bool) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:

        def told(rank: int) -> None:
            try:
                result = work(rank)
            except BaseException:
                result = AssertionError(f"rank {rank}:\n{traceback.format_exc()}")
            (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))

        for child in _forked(count, told, group):
            os.waitpid(child, 0)
        files = [Path(folder) / str(rank) for rank in range(count)]
        return [pickle.loads(file.read_bytes()) if file.exists() else AssertionError("it was killed") for file in files]


def _forked(count: int, work: Callable[[int], Any], group: bool) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(count):
        child = os.fork()
        if not child:
            _in_fork(rank, count, port, work, group)
        children.append(child)
    return children


def _in_fork(rank: int, count: int, port: int, work: Callable[[int], Any], group: bool) -> None:
    code = 1
    try:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {name: str(value) for name, value in (place | {"MASTER_PORT": port}).items()}
        # as torchrun sets it: accelerate would take more threads, for which a fork waits in vain if its parent had them
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        if group:
            torch.distributed.init_process_group("gloo")
        work(rank)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
