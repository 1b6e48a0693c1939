"""transformers' own linear models on the kernels of this package, where they run on a CPU."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, Self

from maclaurin.acceleration.architectures import ARCHITECTURES
from maclaurin.acceleration.patches import NotAccelerated, Patches, sentence

__all__ = ["ARCHITECTURES", "Acceleration", "NotAccelerated", "accelerate_transformers"]


def accelerate_transformers(model: Any = None) -> Acceleration:
    """Linear models of transformers take the kernels of this package, those that exist and those to come.

    To be undone by the result's `undo`, or by leaving `with accelerate_transformers():`. A model that is given and has
    nothing to gain is refused. `maclaurin run SCRIPT` does the same for a script, MACLAURIN_ACCELERATE=1 for any process.
    """
    if model is not None and all(sentence(kind) is not None for kind in {type(module) for module in model.modules()}):
        raise ValueError(sentence(type(model)))
    return Acceleration()


class Acceleration:
    """In force from its making until `undo`. Of several that overlap, the last to be undone puts all names back."""

    _in_force: ClassVar[list[Acceleration]] = []
    _patches: ClassVar[Patches] = Patches()

    def __init__(self) -> None:
        if not self._in_force:
            self._patches.apply()
        self._in_force.append(self)

    def undo(self) -> None:
        if self in self._in_force:
            self._in_force.remove(self)
            if not self._in_force:
                self._patches.undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()
