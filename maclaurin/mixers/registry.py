"""Mixers by name. A mixer is a class and the options that make it what its paper describes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from maclaurin.common.choices import near_miss
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.blocks import block_options


@dataclass(frozen=True)
class Entry:
    name: str
    mixer: type[Mixer]
    summary: str
    citation: str
    preset: dict[str, Any]

    def options(self) -> dict[str, Any]:
        """Every option and its default under this name: those of the class, and of the base it passes the rest on to."""
        options: dict[str, Any] = {}
        for owner in self.mixer.__mro__:
            if "__init__" not in vars(owner):
                continue
            parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
            for parameter in parameters:
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "causal":  # an argument of build_mixer
                    options.setdefault(parameter.name, self.preset.get(parameter.name, parameter.default))
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                break
        return {**options, "block": None} if self.mixer.has_block else options


_entries: dict[str, Entry] = {}

# options that not every mixer can have, and why
WHY_NOT = {
    "block": "it is a block of its own",
    "num_kv_heads": "its heads cannot be grouped",
    "rotary": "it does not have both queries and keys",
    "tie_decay_pairs": "it needs a decay per key channel and rotary positions",
    "window": "it has no KV cache that could be cut to a window",
}


def register(name: str, mixer: type[Mixer], summary: str, citation: str, **preset: Any) -> None:
    if name in _entries:
        raise ValueError(f"a mixer named {name!r} is registered already")
    _entries[name] = Entry(name, mixer, summary, citation, preset)


def available_mixers(pattern: str = "*") -> list[str]:
    """The names of all mixers, or of those that match a pattern such as "*mamba*"."""
    return [name for name in _entries if fnmatchcase(name, pattern)]


def mixer_entry(name: str) -> Entry:
    if name not in _entries:
        raise ValueError(f"unknown mixer {name!r}{near_miss(name, _entries)}; available: {', '.join(_entries)}")
    return _entries[name]


def build_mixer(name: str, d_model: int, num_heads: int, *, causal: bool = True, **options: Any) -> Mixer:
    """A mixer by name: `build_mixer("2mamba", d_model=512, num_heads=8, value_discretization="dt")`."""
    entry = mixer_entry(name)
    known = entry.options()
    for option in options:
        if option not in known:
            why = f" ({WHY_NOT[option]})" if option in WHY_NOT else near_miss(option, known)
            raise ValueError(f"mixer {name!r} has no option {option!r}{why}; it takes: {', '.join(known)}")
    if not causal:
        if not entry.mixer.bidirectional:
            raise ValueError(f"mixer {name!r} is causal only, causal=False is not possible")
        options["causal"] = False
    around = block_options(options.pop("block", None), own_gate=entry.mixer.own_gate)
    given = {**entry.preset, **around, **options}
    mixer = entry.mixer(d_model, num_heads, **given)
    mixer.kind, mixer.built_with = name, given
    if causal:
        mixer.shapes().check()  # reads what its states are declared to hold, once: no compiler could
    return mixer
