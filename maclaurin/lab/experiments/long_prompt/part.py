"""A piece of the experiment: its claims, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maclaurin.lab.claims import Claim
from maclaurin.lab.result import Grid, Matrix, Plot


@dataclass(frozen=True)
class Part:
    claims: Sequence[Claim]
    grids: Sequence[Grid] = ()
    plots: Sequence[Plot | Matrix] = ()
