"""What the mixers on an elementwise recurrence share: a memory of fixed shape, and perhaps a short convolution before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maclaurin.mixers.base import Mixer, MixerState, ShortConv
from maclaurin.ops import checks
from maclaurin.ops.states import ConvState, ScanState


class ScannedMixer(Mixer):
    memory_shape: tuple[int, ...]  # of one sequence
    conv: ShortConv | None

    def _convolved(
        self, x: Tensor, state: MixerState | None, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, ConvState | None]:
        if self.conv is None:
            return x, None
        return self.conv.run(x, None if state is None else state.conv, form, lengths)

    @staticmethod
    def _memory(state: MixerState | None) -> ScanState | None:
        return None if state is None else checks.initial_state(state.attention, ScanState)

    @property
    def finite_state(self) -> bool:
        return True

    def init_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MixerState:
        device, dtype = self._placement(device, dtype)
        wide = torch.promote_types(dtype, torch.float32)
        memory = torch.zeros(batch_size, *self.memory_shape, device=device, dtype=wide)
        conv = None if self.conv is None else self.conv.init_state(batch_size, device, dtype)
        return MixerState(ScanState(memory), conv, kind=self.kind)

    def state_nbytes(self, length: int) -> int:
        dtype = next(self.parameters()).dtype
        carried = 0 if self.conv is None else self.conv.state_size * dtype.itemsize
        return carried + math.prod(self.memory_shape) * torch.promote_types(dtype, torch.float32).itemsize
