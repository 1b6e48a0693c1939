"""Sequences that are cut in time: each call sees a slice, and mixers hand their states from one slice to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from maclaurin.mixers.base import Mixer, MixerState


class Handover(Protocol):
    """Where the state before the first token of a slice comes from, and where that after its last one goes."""

    def receive(
        self, mixer: Mixer, x: Tensor, cu_seqlens: Tensor | Sequence[int] | None
    ) -> tuple[Tensor, MixerState | None, Tensor | Sequence[int] | None]:
        """The tokens that are to be computed here, the state before them, None where there is none, and the bounds of their
        documents. Where another process computes the first tokens of the slice, these are the others."""

    def send(self, mixer: Mixer, y: Tensor, state: MixerState) -> Tensor:
        """The outputs of the whole slice, once the state is on its way."""


# of the process, not of a context: the backward of a checkpointed layer runs in a thread of autograd
_current: Handover | None = None


def current() -> Handover | None:
    return _current


@contextmanager
def handing_over(handover: Handover) -> Iterator[None]:
    """Within, every mixer that is called without a state takes it from the slice before."""
    global _current
    if _current is not None:
        raise RuntimeError("sequences are cut already: leave the outer context first")
    _current = handover
    try:
        yield
    finally:
        _current = None
