"""What mixers with an elementwise recurrence share: a state of fixed shape, and an optional short convolution before it."""

from __future__ import annotations

from torch import Tensor

from maclaurin.mixers.base import AT_ONCE, Call, Mixer, MixerState, ShortConv, Zeros
from maclaurin.ops.states import ConvState, ScanState


class ScannedMixer(Mixer):
    state_shape: tuple[int, ...]  # of one sequence
    conv: ShortConv | None

    @property
    def folds(self) -> bool:
        return True

    def convolved(self, x: Tensor, state: MixerState | None = None, call: Call = AT_ONCE) -> tuple[Tensor, ConvState | None]:
        if self.conv is None:
            return x, None
        return self.conv.run(x, None if state is None else state.conv, call)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        conv = None if self.conv is None else self.conv.state_of(zeros)
        return MixerState(ScanState(zeros(*self.state_shape, dtype=zeros.wide)), conv, kind=self.kind)
