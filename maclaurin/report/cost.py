"""What a token costs as the sequence grows: counted, and measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode

from maclaurin.mixers.base import Mixer

COUNTED = (256, 512, 1024, 1536, 2048)
MEASURED = (256, 512, 1024, 2048, 4096)


def multiply_adds(mixer: Mixer, lengths: Sequence[int]) -> dict[int, float]:
    """Multiply-adds per token of all matrix products in a forward of the chunked form, by length.

    Up to 2048 tokens they are counted. The count is a polynomial of the length, of degree 2 at most, so the last three
    counts give those of longer sequences exactly.
    """
    counts = {length: _count(mixer, length) for length in COUNTED}
    (a, b, c), (y_a, y_b, y_c) = COUNTED[-3:], [counts[length] for length in COUNTED[-3:]]

    def through_three(T: int) -> float:
        first, second = (y_b - y_a) / (b - a), (y_c - y_b) / (c - b)
        return y_a + (T - a) * (first + (T - b) * (second - first) / (c - a))

    return {T: (counts[T] if T in counts else through_three(T)) / T for T in lengths}


def forward_seconds(mixers: dict[str, Mixer], budget: float = 20.0) -> dict[str, dict[int, float]]:
    """Seconds per token of a forward of the fastest form on one thread, by name and length: the best of three.

    Length by length, all mixers at each, until the next length would exceed `budget` seconds.
    """
    seconds: dict[str, dict[int, float]] = {name: {} for name in mixers}
    end = time.monotonic() + budget
    for T in MEASURED:
        # doubling the length at most doubles the time per token
        expected = sum(3 * T * 2 * times.get(T // 2, 0.0) for times in seconds.values())
        if time.monotonic() + expected > end:
            break
        for name, mixer in mixers.items():
            seconds[name][T] = min(_forward(mixer, T) for _ in range(3)) / T
    return seconds


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine, several threads would measure their synchronisation instead of the arithmetic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
@_one_thread()
def _count(mixer: Mixer, length: int) -> int:
    with FlopCounterMode(display=False) as counter:
        x = torch.zeros(1, length, mixer.d_model, dtype=torch.float32, device="cpu")
        mixer(x, return_state=False, form="chunked")
    return counter.get_total_flops() // 2


@torch.no_grad()
@_one_thread()
def _forward(mixer: Mixer, length: int) -> float:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, length, mixer.d_model, generator=generator, dtype=torch.float32, device="cpu")
    start = time.perf_counter()
    mixer(x, return_state=False)
    return time.perf_counter() - start
