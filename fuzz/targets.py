"""All targets by name. Nothing here imports torch: the process that hands out cases stays small."""

from __future__ import annotations

from fnmatch import fnmatchcase

from fuzz.case import Target
from fuzz.kinds import KINDS

TARGETS = {
    target.name: target
    for target in (
        Target("ops", "fuzz.ops:case", share=4),
        Target("whole", "fuzz.whole:case"),
        Target("mixers", "fuzz.mixers:case", share=4),
        Target("states", "fuzz.states:case", share=2),
        *(Target(f"file-{name}", "fuzz.files:case", 6 / len(KINDS), (kind,)) for name, kind in KINDS.items()),
    )
}

KERNELS = ("ops", "whole", "mixers", "states")  # the targets that call the native library


def matching(patterns: list[str]) -> list[Target]:
    """The targets that match any of the patterns, such as "ops" and "file-*"."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in TARGETS):
            raise ValueError(f"no target matches {pattern!r}; there are: {', '.join(TARGETS)}")
    return [target for name, target in TARGETS.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
