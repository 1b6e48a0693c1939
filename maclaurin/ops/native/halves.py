"""A recurrent state in two halves of 16 bits (`csrc/halves.h`): a decoding step reads the upper ones, half of the bytes.

The upper half of a number is the number rounded to bfloat16, the lower one is the rest: together they are float32 to the
bit. Tokens are folded into both, so that what a step loses by rounding is lost once, at any length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STATE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Halves:
    """Both of one shape, as int16."""

    upper: Tensor
    lower: Tensor

    @classmethod
    def of(cls, state: Tensor) -> Halves:
        bits = state.nan_to_num(nan=float("nan"), posinf=torch.inf, neginf=-torch.inf).view(torch.int32)
        rounded = (bits + 0x8000) >> 16
        return cls(rounded.to(torch.int16), (bits - (rounded << 16)).to(torch.int16))

    @classmethod
    def empty_like(cls, other: Halves) -> Halves:
        return cls(*(torch.empty(x.shape, dtype=torch.int16, device=x.device) for x in (other.upper, other.lower)))

    def joined(self) -> Tensor:
        """In float32."""
        return ((self.upper.to(torch.int32) << 16) + self.lower).view(torch.float32)

    @property
    def shape(self) -> torch.Size:
        return self.upper.shape

    @property
    def addresses(self) -> tuple[int, int]:
        return self.upper.data_ptr(), self.lower.data_ptr()
