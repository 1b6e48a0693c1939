"""The contenders of `maclaurin compare`: mechanisms in one block, or the rows of the thesis as they were published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maclaurin.common.arguments import one_of
from maclaurin.common.choices import choices, near_miss, spelled


@dataclass(frozen=True)
class Contender:
    """A mixer with its options, and its loss in the thesis, arXiv 2602.17363 (small, 2048 tokens, FineWeb, 90k steps)."""

    mixer: str
    options: dict[str, Any]
    published: str = ""


PUBLISHED = {
    "softmax": Contender("softmax", {}, "2.731"),
    "softmax-conv": Contender("softmax", {"conv_width": 2}),
    "linear": Contender("linear", {}, "3.028"),
    "mamba2": Contender("mamba2", {"expand": 1, "d_state": 64}, "2.879 (one head)"),
    "mamba2s": Contender("mamba2s", {}, "2.760"),
    "2mamba": Contender("2mamba", {}, "2.727 (with dt)"),
    "2mamba-e": Contender("2mamba-e", {}, "2.590 (medium; softmax 2.606)"),
}
# softmax first, with and without decays; then orders 2 and 1; Mamba-2 is a gated block of its own
MECHANISMS = ("softmax", "fox", "2mamba-e", "2mamba", "mamba2s", "mamba2", "gated-delta", "linear")
PUBLISHED_BLOCK = "published"
BLOCKS = ("gated", "llama", PUBLISHED_BLOCK)


def contenders(block: str) -> tuple[str, ...]:
    """The rows of a comparison that names none."""
    one_of("block", block, BLOCKS)
    return tuple(PUBLISHED) if block == PUBLISHED_BLOCK else MECHANISMS


def chosen(mixers: str | Sequence[str], block: str) -> dict[str, Contender]:
    """The contenders by the names of their rows: any registered mixers, in the block, with the options that are given.

    mixers: `gla,2mamba:conv_width=4,gate=true`, or a list with one contender in each item; those of the block if empty.
    A mixer that is a block of its own is what it is in every block, and so is a row of the thesis, `paper-2/2Mamba`.
    """
    from maclaurin.mixers.published import is_published
    from maclaurin.mixers.registry import available_mixers

    names = ",".join(contenders(block)) if not mixers else mixers if isinstance(mixers, str) else ",".join(mixers)
    known = tuple(dict.fromkeys([*contenders(block), *PUBLISHED, *available_mixers()]))
    found: dict[str, Contender] = {}
    for name, options in choices("mixers", names):
        if name not in known and not is_published(name):
            raise ValueError(f"mixers has {name!r}{near_miss(name, known)}; it may have {', '.join(known)}")
        row = spelled(name, options)
        if row in found:
            raise ValueError(f"mixers has {row!r} twice")
        found[row] = _in_block(PUBLISHED.get(name, Contender(name, {})), options, block)
    if not found:
        raise ValueError(f"mixers must name at least one contender; it may have {', '.join(known)}")
    return found


def _in_block(own: Contender, options: dict[str, Any], block: str) -> Contender:
    """The given options beside the contender's own, which are both beside those of the block."""
    from maclaurin.mixers.published import is_published, published_row
    from maclaurin.mixers.registry import mixer_entry

    if is_published(own.mixer):
        mixer, preset = published_row(own.mixer)
        return Contender(mixer, preset | options, published(mixer, preset | options))
    if block == PUBLISHED_BLOCK:
        return Contender(own.mixer, own.options | options, "" if options else own.published)
    around = {"block": block} if mixer_entry(own.mixer).mixer.has_block else {}
    return Contender(own.mixer, around | own.options | options)


def published(mixer: str, options: Mapping[str, Any]) -> str:
    """What the thesis gives for exactly this layer; "" if it gives nothing."""
    return next((own.published for own in PUBLISHED.values() if (own.mixer, own.options) == (mixer, dict(options))), "")


def name_of(mixer: str, options: Mapping[str, Any]) -> str:
    """The row of a layer as it would be typed, whatever its block."""
    inner = {name: value for name, value in options.items() if name != "block"}
    for name, own in PUBLISHED.items():
        if (own.mixer, own.options) == (mixer, inner):
            return name
    return spelled(mixer, inner)
