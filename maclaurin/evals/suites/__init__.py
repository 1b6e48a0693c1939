"""The suites: experiments as plain data.

`quick` takes minutes on a laptop with two cores, `standard` hours; `paper` has the published settings, where a paper has
settings that this package can train. Published figures are in `published` and never mixed with measured ones.
"""

from __future__ import annotations

from collections.abc import Callable

from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.frontier import frontier
from maclaurin.evals.suites.lra import lra
from maclaurin.evals.suites.mad import mad
from maclaurin.evals.suites.needle import needle
from maclaurin.evals.suites.recall import recall
from maclaurin.evals.suites.rows import OTHER_ROWS
from maclaurin.evals.suites.search import search
from maclaurin.evals.suites.swax import swax
from maclaurin.evals.suites.track import track
from maclaurin.evals.suites.vision import vision

PRESETS = ("quick", "standard", "paper")

SUITES: dict[str, Callable[[str], list[Experiment]]] = {
    "recall": recall,
    "track": track,
    "needle": needle,
    "lra": lra,
    "mad": mad,
    "vision": vision,
    "swax": swax,
    "frontier": frontier,
    "search": search,
}

__all__ = ["OTHER_ROWS", "PRESETS", "SUITES"]
