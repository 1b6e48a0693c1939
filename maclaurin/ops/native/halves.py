"""A recurrent state in two halves of 16 bits (`csrc/halves.h`): a decoding step reads the upper ones, half of the bytes.

The upper half of a number is the number rounded to bfloat16, the lower one is the rest: together they are float32 to the
bit. Tokens are folded into both, so that what a step loses by rounding is lost once, at any length. Totals, one number of a
row, stay as they are.
"""

# B batch, G key-value heads, F = K(K+1)/2, W = V or V+1

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.ops.native.library import large_buffer

STATE_DTYPES = ("float32", "bfloat16")
_ROWS, _COLUMNS = 16, 32  # multiples of them, so that the vectors of a kernel lie inside cache lines


@dataclass(frozen=True)
class Halves:
    """data: int16 (B, G, everything of a head): upper halves, lower ones, totals. shape: (B, G, F, W) of the state."""

    data: Tensor
    shape: torch.Size
    normalize: bool

    @classmethod
    def of(cls, state: Tensor, normalize: bool) -> Halves:
        halves = cls.zeros(state.shape, normalize)
        upper, lower, totals = halves._parts()
        numbers = state[..., : upper.shape[3]]
        bits = numbers.nan_to_num(nan=float("nan"), posinf=torch.inf, neginf=-torch.inf).view(torch.int32)
        upper.copy_((bits + 0x8000) >> 16)
        lower.copy_(bits.view(torch.int16)[..., ::2])
        if totals is not None:
            totals.copy_(state[..., -1])
        return halves

    @classmethod
    def zeros(cls, shape: torch.Size, normalize: bool) -> Halves:
        B, G, F, W = shape
        size = 2 * _padded(F, _ROWS) * (_padded(W - normalize, _COLUMNS) + normalize)
        return cls(large_buffer(B, G, size, dtype=torch.int16).zero_(), shape, normalize)

    @classmethod
    def empty_like(cls, other: Halves) -> Halves:
        return cls(torch.empty(other.data.shape, dtype=torch.int16, device="cpu"), other.shape, other.normalize)

    def joined(self) -> Tensor:
        """In float32."""
        upper, lower, totals = self._parts()
        numbers = ((upper.to(torch.int32) << 16) + lower).view(torch.float32)
        return numbers if totals is None else torch.cat((numbers, totals[..., None]), 3)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Upper and lower halves, (B, G, F, V), and totals (B, G, F) in float32, without the padding."""
        F, W = self.shape[2:]
        rows, V = _padded(F, _ROWS), W - self.normalize
        columns = _padded(V, _COLUMNS)
        upper, lower, totals = self.data.split((rows * columns, rows * columns, 2 * rows * self.normalize), 2)
        numbers = (x.unflatten(2, (rows, columns))[:, :, :F, :V] for x in (upper, lower))
        return *numbers, totals.view(torch.float32)[..., :F] if self.normalize else None

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def data_ptr(self) -> int:
        return self.data.data_ptr()


Recurrent = Tensor | Halves | None


def places(recurrent: Recurrent) -> tuple[int, int]:
    """The addresses of a state as it is, and of one in halves, as a kernel takes them."""
    if recurrent is None:
        return 0, 0
    return (0, recurrent.data_ptr()) if isinstance(recurrent, Halves) else (recurrent.data_ptr(), 0)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
