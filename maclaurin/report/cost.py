"""What a token costs as the sequence grows: counted, and measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from maclaurin.common.timing import Timing, interleaved
from maclaurin.mixers.base import Mixer

COUNTED = (256, 512, 1024, 1536, 2048)
MEASURED = (256, 512, 1024, 2048, 4096)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine, several threads would measure their synchronisation instead of the arithmetic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


@torch.no_grad()
@_one_thread()
def forward_ms(mixers: dict[str, Mixer], budget: float = 20.0) -> dict[str, dict[int, Timing]]:
    """Milliseconds per token of a forward of the fastest form on one thread, by name and length: median and quartiles.

    Length by length, all mixers in turn at each, until the next length would exceed `budget` seconds.
    """
    found: dict[str, dict[int, Timing]] = {name: {} for name in mixers}
    end = time.monotonic() + budget
    for T in MEASURED:
        # doubling the length at most doubles the time per token; a turn to warm up, and three at least
        expected = sum(4 * T * 2 * times[T // 2].median for times in found.values() if T // 2 in times) / 1000
        if time.monotonic() + expected > end:
            break
        turns: dict[str, Callable[[], object]] = {
            name: partial(mixer, _tokens(mixer, T), return_state=False) for name, mixer in mixers.items()
        }
        for name, timing in interleaved(turns, seconds=budget / (2 * len(MEASURED)), fewest=3, most=9).items():
            found[name][T] = Timing(*(ms / T for ms in astuple(timing)))
    return found


@torch.no_grad()
@_one_thread()
def _count(mixer: Mixer, length: int) -> int:
    with FlopCounterMode(display=False) as counter:
        x = torch.zeros(1, length, mixer.d_model, dtype=torch.float32, device="cpu")
        mixer(x, return_state=False, form="chunked")
    return counter.get_total_flops() // 2


def _tokens(mixer: Mixer, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, length, mixer.d_model, generator=generator, dtype=torch.float32, device="cpu")
