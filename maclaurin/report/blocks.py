"""What stands around the mechanism of each row, convolution, gate and skip: a comparison of mixers compares these too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maclaurin.comparison.answers import joined
from maclaurin.mixers.base import Mixer, ShortConv
from maclaurin.mixers.mamba2 import Mamba2
from maclaurin.report.runs import Group

GATES = ("gate_proj", "out_gate_proj")


@dataclass(frozen=True)
class Block:
    """conv: the width of the short convolution, 0 for none."""

    conv: int
    gate: bool
    skip: bool

    @classmethod
    def of(cls, mixer: Mixer) -> Block:
        widths = [part.kernel_size[0] for part in mixer.modules() if isinstance(part, ShortConv)]
        gate = any(getattr(mixer, name, None) is not None for name in GATES)
        gate = gate or (isinstance(mixer, Mamba2) and mixer.norm is not None)
        return cls(max(widths, default=0), gate, any(getattr(mixer, name, None) is not None for name in ("skip", "D")))

    def beyond(self, other: Block) -> list[str]:
        """What it has and the other has not."""
        found = [f"a convolution of width {self.conv}"] if self.conv > other.conv else []
        return found + ["a gate"] * (self.gate > other.gate) + ["a skip (D)"] * (self.skip > other.skip)

    def __str__(self) -> str:
        return joined(self.beyond(NOTHING)) or "none of these"


NOTHING = Block(0, False, False)


def compared(groups: Sequence[Group]) -> str:
    """Which blocks the rows have, if they differ, and what those ahead of 2mamba have that it lacks."""
    blocks = {group.name: Block.of(group.layers[0][0]) for group in groups if len(group.layers) == 1}
    if len(set(blocks.values())) < 2:
        return ""
    rows: dict[Block, list[str]] = {}
    for name, block in blocks.items():
        rows.setdefault(block, []).append(name)
    texts = [f"{joined(names)} {'has' if len(names) == 1 else 'have'} {block}" for block, names in rows.items()]
    return f"The rows are blocks, not mechanisms alone, and the blocks differ: {'; '.join(texts)}.{_behind(groups, blocks)}"


def _behind(groups: Sequence[Group], blocks: dict[str, Block]) -> str:
    second = next((group for group in groups if group.mixer == "2mamba" and group.name in blocks), None)
    if second is None or second.row.rank is None:
        return ""
    ahead = [group.name for group in groups if group.row.rank is not None and group.row.rank < second.row.rank]
    more = {name: blocks[name].beyond(blocks[second.name]) for name in ahead if name in blocks}
    texts = [f"{name}, whose block also has {joined(parts)}" for name, parts in more.items() if parts]
    if not texts:
        return ""
    one = "what the mechanism alone is worth, only rows of one block say (block=gated)"
    return f" {second.name} is behind {joined(texts)}: {one}."
