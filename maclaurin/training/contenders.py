"""The contenders of `maclaurin compare`, and the budget they have unless another is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from maclaurin.common.choices import choices, near_miss, spelled

# fields of a recipe: takes minutes on two cores and shows the order of the mechanisms
BUDGET: dict[str, Any] = {
    "output": "runs/compare",
    "length": 256,
    "batch_size": 8,
    "steps": 200,
    "warmup_steps": 20,
    "learning_rate": 3e-3,
    "eval_rows": 128,
    "eval_every": 50,
    "track": "none",
}


@dataclass(frozen=True)
class Contender:
    """A mixer with its options, and its loss in the thesis, arXiv 2602.17363 (small, 2048 tokens, FineWeb, 90k steps)."""

    mixer: str
    options: dict[str, Any]
    published: str = ""


CONTENDERS = {
    "softmax": Contender("softmax", {}, "2.731"),
    "softmax-conv": Contender("softmax", {"conv_width": 2}),
    "linear": Contender("linear", {}, "3.028"),
    "mamba2": Contender("mamba2", {"expand": 1, "d_state": 64}, "2.879 (one head)"),
    "mamba2s": Contender("mamba2s", {}, "2.760"),
    "2mamba": Contender("2mamba", {}, "2.727 (with dt)"),
    "2mamba-e": Contender("2mamba-e", {}, "2.590 (medium; softmax 2.606)"),
}


def chosen(mixers: str | Sequence[str]) -> dict[str, Contender]:
    """The contenders by the names of their rows: those above, or any registered mixers, with the options that are given.

    mixers: `gla,2mamba:conv_width=4,gate=true`, or a list with one contender in each item.
    """
    from maclaurin.mixers.registry import available_mixers

    known = tuple(dict.fromkeys([*CONTENDERS, *available_mixers()]))
    found: dict[str, Contender] = {}
    for name, options in choices("mixers", mixers if isinstance(mixers, str) else ",".join(mixers)):
        if name not in known:
            raise ValueError(f"mixers has {name!r}{near_miss(name, known)}; it may have {', '.join(known)}")
        row = spelled(name, options)
        if row in found:
            raise ValueError(f"mixers has {row!r} twice")
        own = CONTENDERS.get(name, Contender(name, {}))
        found[row] = Contender(own.mixer, own.options | options, "" if options else own.published)
    if not found:
        raise ValueError(f"mixers must name at least one contender; it may have {', '.join(known)}")
    return found
