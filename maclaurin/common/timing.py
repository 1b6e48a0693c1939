"""Timing on shared machines: interleaved repeats, medians, spread, and CPU time where one thread does the work."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


def clock() -> Callable[[], float]:
    """Seconds of CPU time where PyTorch has one thread, since other processes do not count there; else of the wall clock."""
    import torch  # not needed by those who only read times

    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def interleaved(
    candidates: dict[str, Callable[[], object]], *, seconds: float, fewest: int = 3, most: int = 40, shuffled: bool = False
) -> dict[str, Timing]:
    """Each candidate once per round, so that a slow moment of the machine affects all of them, until `seconds` are over.

    shuffled: in another order in every round. A short call finds the caches as the one before it has left them, and should
    not always follow the same one.
    The first round warms up. With `fewest=0`, one that takes longer than `seconds` is the only one, and counts.
    """
    now, order, turns = clock(), list(candidates), random.Random(0)

    def one_round() -> dict[str, float]:
        times = {}
        if shuffled:
            turns.shuffle(order)
        for name in order:
            run = candidates[name]
            start = now()
            run()
            times[name] = 1000 * (now() - start)
        return times

    start = time.perf_counter()
    first = one_round()
    if fewest == 0 and time.perf_counter() - start > seconds:
        return {name: summary([ms]) for name, ms in first.items()}
    end = time.perf_counter() + seconds
    rounds = [one_round()]
    while len(rounds) < most and (len(rounds) < fewest or time.perf_counter() < end):
        rounds.append(one_round())
    return {name: summary([times[name] for times in rounds]) for name in candidates}


def on_gpu(run: Callable[[], object], repeats: int = 20) -> Timing:
    """Between CUDA events, so that what is measured is the GPU and not the host that launches."""
    import torch

    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return summary(times)


def summary(times: list[float]) -> Timing:
    if len(times) == 1:
        return Timing(*times * 3)
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high)
