"""The flags of `train` and `compare`: the fields of a recipe, their other names, and the rest of TrainingArguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from maclaurin.commands.fields import takes
from maclaurin.training.names import ALIASES, read, trainer_fields
from maclaurin.training.recipe import Recipe


def takes_recipe(
    *, defaults: Mapping[str, Any] | None = None, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: its argument `given` becomes a dict of the given flags, under the names that were typed."""
    own = Recipe.__dataclass_fields__
    others = {name: kinds for name, kinds in trainer_fields().items() if name not in own and name not in ALIASES}
    return takes(
        "given",
        Recipe,
        defaults=defaults,
        without=("trainer", *without),
        aliases=ALIASES,
        unlisted={name: None if kinds == {bool} else partial(read, name) for name, kinds in others.items()},
    )
