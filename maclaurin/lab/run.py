"""Run experiments by name, side by side in processes of one thread, and keep each result as soon as it is there."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from maclaurin import lab
from maclaurin.common.arguments import one_of
from maclaurin.common.files import naming, write_text
from maclaurin.lab.result import Result
from maclaurin.processes.children import end_with_pool


def function_of(name: str) -> Callable[..., Result]:
    one_of("experiment", name, tuple(lab.EXPERIMENTS))
    function: Callable[..., Result] = getattr(lab, name.replace("-", "_"))
    return function


def run_one(name: str, options: dict[str, Any], threads: int | None = None) -> Result:
    """One experiment, with the CPU time it took: other processes may take turns with it."""
    if threads is not None:
        torch.set_num_threads(threads)
    started = time.process_time()
    result = function_of(name)(**options)
    return dataclasses.replace(result, seconds=time.process_time() - started)


def run_all(names: Sequence[str], options: dict[str, Any], jobs: int) -> Iterator[Result]:
    """As they finish, the most expensive ones started first."""
    # a fresh interpreter each: a forked one would inherit the threads of this
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_pool) as pool:
        waiting = [pool.submit(run_one, name, options, 1) for name in names]
        for future in as_completed(waiting):
            yield future.result()


def keep(result: Result, folder: Path) -> Path:
    path = folder / f"{result.name}.lab.json"
    write_text(path, result.to_json())
    return path


def found_in(folder: Path, broken: Callable[[str], None]) -> list[Result]:
    """The results kept in a folder and below, in the order of the experiments, as far as their figures can be drawn;
    `broken` is told of the other files.
    """
    from maclaurin.lab.page import sections

    kept = []
    for path in sorted(folder.rglob("*.lab.json")):
        try:
            with naming(path):
                result = Result.from_json(path.read_text(encoding="utf-8"))
                for section in sections([result]):
                    section.html()
            kept.append(result)
        except ValueError as error:
            broken(str(error))
    order = list(lab.EXPERIMENTS)
    return sorted(kept, key=lambda result: order.index(result.name) if result.name in order else len(order))
