"""Tiles by kind of GPU, precision and head size: those that stay in registers, as `maclaurin doctor --gpu-compile` shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from maclaurin.ops.gpu.availability import INTERPRETED

LARGEST = 128  # channels of keys, and of values at a time: larger values are split
ROUNDING = 4  # machine epsilons of the largest terms, below which a divisor has no digits (`ops/rounding.py`)


@dataclass(frozen=True)
class Precision:
    """How products are taken. gram: those of the divisor. epsilon: of products through the state.

    bf16 before Hopper is rounded in the product alone: there are no instructions that multiply it elsewhere.
    """

    products: str
    gram: str
    states: torch.dtype
    epsilon: float

    @property
    def centred(self) -> bool:
        """Whether keys are centred: all that rounds below float32 does."""
        return self.products != "ieee"

    @property
    def guard(self) -> float:
        return ROUNDING * self.epsilon


IEEE = Precision("ieee", "ieee", torch.float32, 2.0**-23)
TF32 = Precision("tf32", "tf32", torch.float32, 2.0**-12)
BF16 = Precision("bf16", "tf32", torch.bfloat16, 2.0**-10)
BF16_BEFORE_HOPPER = Precision("bf16x", "tf32", torch.bfloat16, 2.0**-10)


@dataclass(frozen=True)
class Tile:
    """BM queries by BN keys (BT tokens of a walk, IB of whose 16 channels a program takes), and its warps and stages."""

    bm: int
    bn: int
    warps: int
    stages: int = 2

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}, {self.warps}, {self.stages}"


@dataclass(frozen=True)
class Tiles:
    """One per kernel: forward, backward by keys and values, backward by queries, the walk over states, reads of states."""

    forward: Tile
    backward_kv: Tile
    backward_q: Tile
    walk: Tile  # bm: tokens, bn: channels of block I
    through_state: Tile
    moments: Tile

    @property
    def rows(self) -> int:
        """What the length of a chunk must be a multiple of."""
        blocks = (self.forward, self.backward_kv, self.backward_q, self.through_state)
        return max(max(tile.bm, tile.bn) for tile in blocks)


def _tiles(forward: Tile, kv: Tile, q: Tile, walk: Tile, through_state: Tile) -> Tiles:
    return Tiles(forward, kv, q, walk, through_state, Tile(32, 16, 8))


INTERPRETER = Tiles(Tile(32, 16, 1), Tile(16, 32, 1), Tile(32, 16, 1), Tile(32, 16, 1), Tile(32, 32, 1), Tile(32, 16, 1))
SMALL = _tiles(Tile(64, 64, 4), Tile(64, 64, 4), Tile(64, 64, 4), Tile(64, 16, 4), Tile(64, 64, 4))
# by (precision, largest head size)
AMPERE = {
    ("bf16", 32): SMALL,
    ("bf16", 64): _tiles(Tile(128, 64, 8), Tile(64, 64, 8), Tile(128, 64, 8), Tile(32, 8, 4), Tile(128, 64, 8)),
    ("bf16", 128): _tiles(Tile(64, 32, 8), Tile(32, 64, 8), Tile(64, 32, 8), Tile(32, 8, 8), Tile(32, 64, 8)),
    ("tf32", 32): _tiles(Tile(64, 32, 4), Tile(32, 64, 4), Tile(64, 32, 4), Tile(32, 8, 4), Tile(64, 64, 4)),
    ("tf32", 64): _tiles(Tile(64, 32, 8), Tile(32, 64, 8), Tile(64, 32, 8), Tile(32, 8, 4), Tile(64, 64, 8)),
    ("tf32", 128): _tiles(Tile(32, 32, 8), Tile(32, 32, 8), Tile(32, 32, 8), Tile(32, 8, 8), Tile(32, 32, 8)),
}
# sm_86 and later with Ampere's instructions: the walk through chunks spilled 24 bytes (64 on sm_120) at 32 keys
NARROW = _tiles(Tile(64, 16, 8), Tile(32, 64, 8), Tile(64, 32, 8), Tile(32, 8, 8), Tile(32, 64, 8))
ADA = AMPERE | {("bf16", 128): NARROW}
HOPPER = AMPERE | {
    ("bf16", 64): _tiles(Tile(128, 64, 8), Tile(64, 64, 8), Tile(128, 64, 8), Tile(64, 16, 8), Tile(128, 64, 8)),
}
# Blackwell of consumers multiplies as Ampere does
BLACKWELL = HOPPER | {
    ("bf16", 64): _tiles(Tile(64, 32, 4), Tile(64, 64, 8), Tile(128, 64, 8), Tile(64, 16, 8), Tile(128, 64, 8)),
    ("bf16", 128): NARROW,
}
# 64 lanes, and one stage: the next tile is loaded into registers, which the direct form has none left for
CDNA = {
    ("bf16", 32): _tiles(Tile(64, 32, 4), Tile(32, 64, 4, 1), Tile(64, 32, 4), Tile(32, 8, 4), Tile(64, 64, 4)),
    ("bf16", 64): _tiles(Tile(64, 32, 4), Tile(32, 64, 4, 1), Tile(64, 32, 4), Tile(32, 8, 4), Tile(128, 64, 8)),
    ("bf16", 128): _tiles(Tile(64, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 8, 8), Tile(64, 64, 8)),
    ("tf32", 32): _tiles(Tile(64, 32, 4), Tile(32, 32, 4, 1), Tile(32, 32, 4), Tile(32, 8, 4), Tile(64, 64, 8)),
    ("tf32", 64): _tiles(Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 8, 4), Tile(64, 64, 8)),
    ("tf32", 128): _tiles(Tile(16, 32, 8, 1), Tile(16, 32, 8, 1), Tile(32, 16, 8, 1), Tile(32, 8, 8), Tile(64, 32, 8, 1)),
}


def table_of(capability: tuple[int, int], amd: bool) -> dict[tuple[str, int], Tiles]:
    """By kind of products and largest number of channels."""
    if amd:
        return CDNA
    newest_first = (((12, 0), BLACKWELL), ((9, 0), HOPPER), ((8, 6), ADA))
    return next((table for first, table in newest_first if capability >= first), AMPERE)


def precision_of(dtype: torch.dtype, capability: tuple[int, int]) -> Precision:
    """For queries of that dtype. float16 is computed as float32: squares of its scores leave its range."""
    if dtype == torch.bfloat16:
        if INTERPRETED:  # which has no arithmetic of bfloat16: operands are rounded in the products
            return replace(BF16, states=torch.float32)
        return BF16 if capability >= (9, 0) else BF16_BEFORE_HOPPER
    exact = INTERPRETED or torch.get_float32_matmul_precision() == "highest"
    return IEEE if exact else TF32


def tiles_of(precision: Precision, channels: int, capability: tuple[int, int]) -> Tiles:
    """channels: the larger of key and value channels, padded."""
    if INTERPRETED:
        return INTERPRETER
    table = table_of(capability, torch.version.hip is not None)
    kind = "bf16" if precision.states == torch.bfloat16 else "tf32"
    return table[kind, max(channels, 32)]


def capability_of(x: Tensor) -> tuple[int, int]:
    return (8, 0) if INTERPRETED or x.device.type != "cuda" else _capability(x.device.index or 0)


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def width(channels: int) -> int:
    """Channels as the kernels take them: a power of two, of at least one block."""
    return max(16, 1 << (channels - 1).bit_length())
