"""The processes of one run, as torchrun and `accelerate launch` start them: what they agree on, and what each has to do."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

Value = TypeVar("Value")
PATIENCE = timedelta(seconds=5)  # with the store of torchrun, once a process is lost


class LostProcessError(OSError):
    """Another process of the run has ended, or cannot be reached."""


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def begin(backend: str | None, timeout: float | None) -> None:
    """The group of all processes on CPUs, to which transformers would not give its `ddp_timeout` (seconds)."""
    if world_size() > 1 and not distributed.is_initialized():
        patience = None if timeout is None else timedelta(seconds=timeout)
        distributed.init_process_group(backend or "gloo", timeout=patience)


def agreed(value: Value) -> Value:
    """The value of the first process, in all of them."""
    values = [value]
    if distributed.is_initialized():
        distributed.broadcast_object_list(values, src=0)
    return values[0]


def largest(number: int, device: torch.device) -> int:
    """Of all processes, in all of them."""
    if not distributed.is_initialized():
        return number
    found = torch.tensor(number, dtype=torch.long, device=device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return int(found)


def shared_out(sequences: int, devices: int, batch_size: int) -> tuple[int, int]:
    """Batch size and accumulation of each device with which a step has so many sequences; batches are at most as given."""
    each, rest = divmod(sequences, devices)
    if rest:
        raise ValueError(
            f"a step of this run has {sequences} sequences, which {devices} processes cannot share equally: "
            f"start a number of processes that divides {sequences}"
        )
    largest_batch = max(size for size in range(1, min(batch_size, each) + 1) if each % size == 0)
    return largest_batch, each // largest_batch


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Around training: what a backend says about a process that is gone becomes one sentence, from one of the others."""
    try:
        yield
    except RuntimeError as error:
        if not distributed.is_initialized() or not _is_lost(error):
            raise
        if threading.current_thread() is threading.main_thread():
            # torchrun sends it to the others as soon as one is gone: this one ends anyway, and says why
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not _first_to_say_it():
            raise SystemExit(2) from error
        line = str(error).strip().splitlines()[0]
        raise LostProcessError(
            f"process {rank()} of {world_size()}, on {socket.gethostname()}, has lost another one: it was ended, or could "
            f"not be reached within ddp_timeout ({line[-120:]}); checkpoints are whole: start again with --resume auto"
        ) from error


def _is_lost(error: RuntimeError) -> bool:
    """gloo raises no class of its own."""
    words = ("gloo", "Connection closed", "Connection reset", "Timed out", "timeout", "NCCL")
    return isinstance(error, distributed.DistError) or any(word in str(error) for word in words)


def _first_to_say_it() -> bool:
    """Among the survivors, who count in the store of torchrun."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(host, port, is_master=False, timeout=PATIENCE)
        return store.add("maclaurin/lost", 1) == 1
    except (KeyError, RuntimeError):  # the store is lost, too
        return True
