"""Mixers: modules made of ops, by name. Importing this package registers all of them, one per file or several."""

from importlib import import_module
from pkgutil import iter_modules

from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry

__all__ = ["Mixer", "MixerState", "available_mixers", "build_mixer", "mixer_entry"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
