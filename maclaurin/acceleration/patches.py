"""Names of transformers' modules that stand for something else for a while: now where a module is loaded, else as it loads.

transformers' layers look their scans up by name when they are called, so that kernels can be put there. A model that exists
already takes part, and is as before once the names are put back.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torch import nn

from maclaurin.acceleration.architectures import ARCHITECTURES, MODELS, Replacement, architecture_of
from maclaurin.acceleration.attention import causal_softmax
from maclaurin.acceleration.documents import telling_documents
from maclaurin.ops.products import FasterLinear

BASE = "transformers.modeling_utils"
SDPA = "sdpa"


class NotAccelerated(UserWarning):
    """A model of transformers for which there are no kernels here."""


def holds_covered(config: Any) -> bool:
    """Whether a model of this configuration has one of ours inside it, as those that see and hear have."""
    inner = (config, *(value for value in vars(config).values() if hasattr(value, "model_type")))
    return any(type(one).__module__.removeprefix(MODELS).partition(".")[0] in ARCHITECTURES for one in inner)


def sentence(model_class: type) -> str | None:
    """Why a model of transformers runs as it does without this package; None if its kernels are taken."""
    name = architecture_of(model_class.__module__)
    if name is None:
        return f"{model_class.__name__} is no model of transformers: accelerate_transformers does nothing for it"
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        return f"maclaurin has no kernels for {name!r} of transformers, which runs as before; it has them for {known}"
    family, module = ARCHITECTURES[name], sys.modules[model_class.__module__]
    if missing := [path for path in family.names | family.around if holder_of(module, path) is None]:
        return f"{name!r} of this transformers has no {', '.join(missing)} that maclaurin could take over: it runs as before"
    return None


class Patches:
    """The names that were changed, and how they are changed back."""

    def __init__(self) -> None:
        self._undoing: list[Callable[[], None]] = []

    def apply(self) -> None:
        sys.meta_path.insert(0, self)
        self._set(nn.Linear, "forward", FasterLinear.forward)
        for name, module in list(sys.modules.items()):
            if name == BASE or architecture_of(name) in ARCHITECTURES:
                self._patch(module)

    def undo(self) -> None:
        sys.meta_path.remove(self)
        while self._undoing:
            self._undoing.pop()()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Among those that Python asks for every module: for ours, the spec with a loader that patches behind itself."""
        if name != BASE and architecture_of(name) not in ARCHITECTURES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                self._patch(module)

        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec

    def _patch(self, module: ModuleType) -> None:
        name = architecture_of(module.__name__)
        if name is None:
            self._replace(module, "PreTrainedModel.__init__", _saying_so)
            self._replace_attention(module.AttentionInterface)
            return
        family = ARCHITECTURES[name]
        replacements = family.names | family.around
        if any(holder_of(module, path) is None for path in replacements):
            return  # half of a model's functions would be worse than none; `sentence` says so
        for path, replacement in replacements.items():
            self._replace(module, path, replacement)
        telling = functools.partial(telling_documents, packing=family.packing)
        for made in list(vars(module).values()):
            if isinstance(made, type) and made.__module__ == module.__name__ and _is_model(made):
                self._replace(module, f"{made.__name__}.forward", telling)

    def _replace(self, module: ModuleType, path: str, replacement: Replacement) -> None:
        holder, name = holder_of(module, path), path.rpartition(".")[2]
        self._set(holder, name, replacement(vars(holder)[name]))

    def _replace_attention(self, registry: Any) -> None:
        theirs = registry()[SDPA]
        self._undoing.append(functools.partial(registry.register, SDPA, theirs))
        registry.register(SDPA, causal_softmax(theirs))

    def _set(self, holder: Any, name: str, value: Any) -> None:
        self._undoing.append(functools.partial(setattr, holder, name, vars(holder)[name]))
        setattr(holder, name, value)


def holder_of(module: ModuleType, path: str) -> Any | None:
    """Whose attribute a name is, the module or a class of it; None if there is no such name."""
    owner, _, name = path.rpartition(".")
    holder = getattr(module, owner, None) if owner else module
    return holder if holder is not None and name in vars(holder) else None


def _is_model(made: type) -> bool:
    name = made.__name__
    return (name.endswith("Model") or "For" in name) and not name.endswith("PreTrainedModel") and "forward" in vars(made)


def _saying_so(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def saying_so(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        name = architecture_of(type(self).__module__)
        if name is None or (name not in ARCHITECTURES and holds_covered(self.config)):
            return
        if (reason := sentence(type(self))) is not None:
            warnings.warn(reason, NotAccelerated, stacklevel=2)

    return saying_so
