"""The contenders of `maclaurin compare`: mechanisms in one block, or the rows of the thesis as they were published."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maclaurin.common.arguments import one_of
from maclaurin.common.choices import choices, near_miss, spelled
from maclaurin.training.recipe import Recipe, for_all


@dataclass(frozen=True)
class Contender:
    """The mixers of its layers in turn, their options, and its loss in arXiv 2602.17363 (small, 2048 tokens, 90k steps)."""

    mixers: tuple[str, ...]
    options: dict[str, dict[str, Any]]  # by mixer
    published: str = ""

    def recipe(self, base: Recipe) -> Recipe:
        mixer = ",".join(self.mixers)
        options = self.options if len(self.mixers) > 1 else for_all(mixer, self.options[mixer])
        return dataclasses.replace(base, mixer=mixer, mixer_options=json.dumps(options))


def one(mixer: str, published: str = "", **options: Any) -> Contender:
    """The same mixer in all layers."""
    return Contender((mixer,), {mixer: options}, published)


PUBLISHED = {
    "softmax": one("softmax", "2.731"),
    "softmax-conv": one("softmax", conv_width=2),
    "linear": one("linear", "3.028"),
    "mamba2": one("mamba2", "2.879 (one head)", expand=1, d_state=64),
    "mamba2s": one("mamba2s", "2.760"),
    "2mamba": one("2mamba", "2.727 (with dt)"),
    "2mamba-e": one("2mamba-e", "2.590 (medium; softmax 2.606)"),
}
IN_TURN = "+"  # between the mixers of layers in turn
# softmax first, with and without decays; then orders 2 and 1; Mamba-2 is a gated block of its own
MECHANISMS = ("softmax", "fox", "2mamba-e", "2mamba-orders", "2mamba", "mamba2s", "mamba2", "gated-delta", "linear")
PUBLISHED_BLOCK = "published"
BLOCKS = ("gated", "llama", PUBLISHED_BLOCK)


def contenders(block: str) -> tuple[str, ...]:
    """The rows of a comparison that names none."""
    one_of("block", block, BLOCKS)
    return tuple(PUBLISHED) if block == PUBLISHED_BLOCK else MECHANISMS


def chosen(mixers: str | Sequence[str], block: str) -> dict[str, Contender]:
    """The contenders by the names of their rows: any registered mixers, in the block, with the options that are given.

    mixers: `gla,2mamba:conv_width=4,gate=true`, or a list with one contender in each item; those of the block if empty.
    Layers in turn are `2mamba+gated-delta`, and options behind them are those of both.
    A mixer that is a block of its own is what it is in every block, and so is a row of the thesis, `paper-2/2Mamba`.
    """
    from maclaurin.mixers.published import is_published
    from maclaurin.mixers.registry import available_mixers

    names = ",".join(contenders(block)) if not mixers else mixers if isinstance(mixers, str) else ",".join(mixers)
    known = tuple(dict.fromkeys([*PUBLISHED, *available_mixers()]))
    found: dict[str, Contender] = {}
    for name, options in choices("mixers", names):
        parts = [name] if is_published(name) else name.split(IN_TURN)
        for part in parts:
            if part not in known and not is_published(part):
                raise ValueError(f"mixers has {part!r}{near_miss(part, known)}; it may have {', '.join(known)}")
        row = spelled(name, options)
        if row in found:
            raise ValueError(f"mixers has {row!r} twice")
        found[row] = _in_turn([_in_block(part, options, block) for part in parts])
    if not found:
        raise ValueError(f"mixers must name at least one contender; it may have {', '.join(known)}")
    return found


def _in_turn(layers: Sequence[Contender]) -> Contender:
    if len(layers) == 1:
        return layers[0]
    mixers = tuple(name for layer in layers for name in layer.mixers)
    options: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for mixer, own in layer.options.items():
            if options.setdefault(mixer, own) != own:
                raise ValueError(f"mixers must give {mixer!r} the same options in all layers of one contender")
    return Contender(mixers, options)


def _in_block(name: str, options: dict[str, Any], block: str) -> Contender:
    """The given options beside the mixer's own as a contender, which are both beside those of the block."""
    from maclaurin.mixers.published import is_published, published_row
    from maclaurin.mixers.registry import mixer_entry

    if is_published(name):
        mixer, preset = published_row(name)
        return one(mixer, published(mixer, preset | options), **preset | options)
    contender = PUBLISHED.get(name, one(name))
    (mixer,) = contender.mixers
    own = contender.options[mixer]
    if block == PUBLISHED_BLOCK:
        return one(mixer, "" if options else contender.published, **own | options)
    around = {"block": block} if mixer_entry(mixer).mixer.has_block else {}
    return one(mixer, **around | own | options)


def published(mixer: str, options: Mapping[str, Any]) -> str:
    """What the thesis gives for exactly this layer; "" if it gives nothing."""
    return next((own.published for own in PUBLISHED.values() if own.options == {mixer: dict(options)}), "")


def name_of(mixers: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> str:
    """The row of these layers in turn as it would be typed, whatever its block. options: by mixer."""
    inner = [{name: value for name, value in options[mixer].items() if name != "block"} for mixer in mixers]
    if len(mixers) > 1 and all(own == inner[0] for own in inner):
        return spelled(IN_TURN.join(mixers), inner[0])
    return IN_TURN.join(_layer_name(mixer, own) for mixer, own in zip(mixers, inner, strict=True))


def _layer_name(mixer: str, options: Mapping[str, Any]) -> str:
    return next((name for name, own in PUBLISHED.items() if own.options == {mixer: options}), spelled(mixer, options))
