"""The table of compilations as it was last made, kept beside this file, and its largest figures for each target.

`scripts/keep_gpu_table.py` makes it: hours of CPU time, which nobody has to spend in order to read it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from maclaurin.machine.gpu_compile import Case, Compiled, all_cases

KEPT = Path(__file__).with_name("gpu_compiled.csv")


@dataclass(frozen=True)
class Largest:
    """Of all kernels of one direction for a target, over both precisions and all head sizes."""

    target: str
    direction: str
    kernels: int
    registers: int
    spills: int
    shared: int

    def __str__(self) -> str:
        figures = f"{self.registers} registers, {self.spills} B of spills, {self.shared / 1024:.0f} KB shared at most"
        return f"{self.target:7} {self.direction:8} {self.kernels:3} kernels: {figures}"


def kept(path: Path = KEPT) -> list[Compiled]:
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(**row) for row in csv.DictReader(file)]


def _row(kernel: str, target: str, kind: str, channels: str, tile: str, **numbers: str) -> Compiled:
    return Compiled(kernel, target, kind, int(channels), tile, **{name: int(text) for name, text in numbers.items()})


def keep(rows: Iterable[Compiled], path: Path = KEPT) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Compiled)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def in_order(rows: Iterable[Compiled]) -> Iterator[tuple[str, Case, Compiled | None]]:
    """Every case of the tile table for every target, with its row where there is one of that very tile."""
    found = {row.key: row for row in rows}
    for target, case in all_cases():
        yield target, case, found.get(case.key(target))


def largest(rows: Iterable[Compiled]) -> list[Largest]:
    groups: dict[tuple[str, str], list[Compiled]] = {}
    for row in rows:
        groups.setdefault((row.target, row.direction), []).append(row)
    return [
        Largest(*group, len(own), *(max(getattr(row, name) for row in own) for name in ("registers", "spills", "shared")))
        for group, own in groups.items()
    ]
