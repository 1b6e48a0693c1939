"""Numbers in float64, random ones among them, prompts a bounded number at a time, and statistics of what they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from maclaurin.common.arguments import one_of

LAWS = ("gaussian", "rademacher", "uniform", "laplace")
TOKENS_AT_ONCE = 2**18  # times the weights and features of a token this stays below a quarter of a gigabyte


def generator(seed: int, *stream: int) -> Generator:
    """One stream of draws; different numbers behind the seed give different ones."""
    mixed = seed
    for number in stream:
        mixed = (mixed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's own draws from a seed; what was drawn before and comes after does not notice."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64, device="cpu")


def vector(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def draw(law: str, shape: Sequence[int], source: Generator) -> Tensor:
    """Independent numbers of mean 0 and variance 1."""
    one_of("tokens", law, LAWS)
    if law == "gaussian":
        return normal(*shape, generator=source)
    uniform = torch.rand(*shape, dtype=torch.float64, generator=source, device="cpu")
    if law == "rademacher":
        return torch.where(uniform < 0.5, -1.0, 1.0).to(torch.float64)
    if law == "uniform":
        return math.sqrt(12) * (uniform - 0.5)
    centred = uniform - 0.5  # laplace, by its inverse distribution function
    return -centred.sign() * torch.log1p(-2 * centred.abs()) / math.sqrt(2)


def chunks(prompts: int, length: int, tokens: int = TOKENS_AT_ONCE) -> Iterator[int]:
    """Sizes that add up to `prompts`, each of about so many tokens at most."""
    size = max(tokens // length, 1)
    for start in range(0, prompts, size):
        yield min(size, prompts - start)


def prompts_for(length: int, tokens: int, most: int = 20000) -> int:
    """Short prompts are limited by number, long ones by tokens."""
    return max(min(most, tokens // length), 1)


@dataclass(frozen=True)
class Mean:
    """A mean over prompts with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, samples_N: Tensor) -> Mean:
        error = samples_N.std().item() / math.sqrt(len(samples_N)) if len(samples_N) > 1 else math.inf
        return cls(samples_N.mean().item(), error)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of log y against log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference of an entry."""
    return (one - other).abs().max().item()


def relative_distance(one: Tensor, other: Tensor) -> float:
    """The same over the largest entry of the other."""
    return distance(one, other) / other.abs().max().item()


def ranks(matrices: Tensor, rtol: float = 1e-10) -> Tensor:
    return torch.linalg.matrix_rank(matrices, rtol=rtol).double()


def block_ranks(weights_HTT: Tensor) -> list[int]:
    """Per head, in numbers per value channel, what the second half of the tokens can know of the first."""
    half = weights_HTT.shape[1] // 2
    return [int(rank) for rank in ranks(weights_HTT[:, half:, :half])]


def furthest(values: Sequence[float], centre: float = 1.0) -> float:
    """A NaN is further than anything."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else abs(value - centre))
