"""Facts about mixers, computed from the mixers themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from maclaurin.mixers.base import Mixer
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry


def overview(pattern: str, d_model: int, num_heads: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """A row a mixer that matches the pattern: cost, state bytes by length, crossover, options, citation."""
    names = available_mixers(pattern) or [mixer_entry(pattern).name]
    rows = []
    for name in names:
        entry = mixer_entry(name)
        mixer = build_mixer(name, d_model, num_heads)
        rows.append(
            {
                "name": name,
                "summary": entry.summary,
                "training": "O(T)" if mixer.finite_state else "O(T²)",
                "decoding": "constant" if mixer.finite_state else "grows",
                "state_nbytes": {str(length): mixer.state_nbytes(length) for length in lengths},
                "crossover": crossover_length(mixer),
                "options": entry.options(),
                "citation": entry.citation,
                "help": _help(entry.mixer),
            }
        )
    return rows


def size_text(nbytes: int) -> str:
    """8912896 -> "8.5 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def _help(mixer: type[Mixer]) -> str:
    """What the class and its bases say of their options."""
    documented = [owner for owner in mixer.__mro__ if issubclass(owner, Mixer) and owner is not Mixer]
    return "\n".join(inspect.cleandoc(owner.__doc__ or "") for owner in documented)


def crossover_length(mixer: Mixer) -> int | None:
    """The length from which on the state is no larger than that of softmax attention of the same width, or None."""
    if not mixer.finite_state:
        return None
    softmax = build_mixer("softmax", mixer.d_model, mixer.num_heads, rotary="none")
    token = softmax.state_nbytes(1)
    length = 2 * mixer.state_nbytes(10**6) // token + 1  # surely beyond it
    while length > 1 and mixer.state_nbytes(length - 1) <= softmax.state_nbytes(length - 1):
        length -= 1
    return length
